// What changes is said aloud to who does not see it, a few words at a time.

import { byId, plain, setText } from "./dom.js";

const pause = 3000;
let waiting = [];
let timer = 0;

/** Has a text read out when there is time for it. */
export function announce(text) {
  waiting.push(plain(text));
  if (!timer) say();
}

function say() {
  timer = 0;
  if (waiting.length === 0) return;
  const many = waiting.length > 3;
  setText(byId("announcements"), (many ? [...waiting.slice(0, 2), `and ${waiting.length - 2} more changes`] : waiting).join(". "));
  waiting = [];
  timer = setTimeout(say, pause);
}
