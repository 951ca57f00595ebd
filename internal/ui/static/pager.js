// Long lists, a page at a time: the document stays small however large the fleet.

import { make, setText } from "./dom.js";
import { count, counted } from "./format.js";

/** Makes a pager in an element; changed is called when another page is wanted. */
export function pager(parent, size, what, changed) {
  let page = 0;
  const told = make("span", { class: "told" });
  const turn = (by) => () => {
    page += by;
    changed();
  };
  const back = make("button", { type: "button", on: { click: turn(-1) } }, "Previous");
  const next = make("button", { type: "button", on: { click: turn(1) } }, "Next");
  const buttons = make("span", { class: "turn" }, back, next);
  parent.classList.add("pager");
  parent.append(told, buttons);
  return {
    first() {
      page = 0;
    },
    /** Returns what of all is on the page. */
    cut(all, outOf = all.length) {
      const last = Math.max(0, Math.ceil(all.length / size) - 1);
      page = Math.max(0, Math.min(page, last));
      const from = page * size;
      const to = Math.min(all.length, from + size);
      const total = (outOf > all.length ? count(all.length) + " of " : "") + counted(outOf, what);
      setText(told, all.length <= size ? total : `${count(from + 1)}–${count(to)} of ${total}`);
      buttons.hidden = all.length <= size;
      disable(back, page === 0, next);
      disable(next, page === last, back);
      return all.slice(from, to);
    },
  };
}

// disable does so, and hands on the focus that would be lost.
function disable(button, off, other) {
  if (off && document.activeElement === button) {
    other.disabled = false;
    other.focus();
  }
  button.disabled = off;
}
