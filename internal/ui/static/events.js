// What happens: new events as they come, older ones page by page.

import { ask, Failure } from "./api.js";
import { byId, hide, list, make, plain, setText } from "./dom.js";
import { count, counted } from "./format.js";
import { state } from "./feed.js";
import { isWarning, kinds, sentenceOf, timeOf } from "./words.js";

const form = byId("events-form");
const field = (id) => byId("events-" + id);
const perPage = 100;
let shown = []; // the events of the page
let pages = [0]; // where the pages before began, the present one last
let older = 0; // where the next one begins, 0 if there is none
let waiting = []; // new ones that are not shown yet
let held = false; // new ones wait until somebody wants them
let number = 0; // of the newest question: answers to older ones are late

for (const kind of kinds) field("kind").append(make("option", { value: kind }, kind.replaceAll("_", " ")));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  restart();
});
field("kind").addEventListener("input", restart);
byId("events-hold").addEventListener("click", () => {
  held = !held;
  if (!held) restart();
  drawEvents();
});
byId("events-news").addEventListener("click", () => {
  held = false;
  restart();
});
byId("events-older").addEventListener("click", () => {
  if (!older) return;
  pages.push(older);
  load();
});
byId("events-newer").addEventListener("click", () => {
  if (pages.length > 1) pages.pop();
  load();
});

const filters = () => ({
  kind: field("kind").value, namespace: slashed(field("namespace").value.trim()), clientId: field("client").value.trim(),
});

const slashed = (text) => (text && !text.startsWith("/") ? "/" + text : text);

const fits = (e, f) => (!f.kind || e.kind === f.kind) && (!f.namespace || (e.namespaces ?? []).includes(f.namespace)) &&
  (!f.clientId || e.clientId === f.clientId || e.fromClientId === f.clientId);

/** Shows the newest events that fit. */
export function restart() {
  pages = [0];
  waiting = [];
  load();
}

async function load() {
  const mine = ++number;
  setText(byId("events-fault"), "");
  try {
    const page = await ask("events", { query: { ...filters(), limit: perPage, before: pages.at(-1) || undefined } });
    if (mine !== number) return;
    shown = page.events;
    older = page.before ?? 0;
    // What came meanwhile by the stream.
    if (pages.length === 1) takeEvents([]);
  } catch (fault) {
    if (!(fault instanceof Failure)) throw fault;
    if (mine === number) setText(byId("events-fault"), "Not loaded: " + plain(fault.message));
  }
  drawEvents();
}

/** Takes new events in. */
export function takeEvents(fresh) {
  const f = filters();
  const newest = shown[0]?.event ?? 0;
  if (pages.length > 1 || held) {
    waiting = [...fresh.filter((e) => fits(e, f)), ...waiting].slice(0, 1000);
  } else {
    const more = state.events.filter((e) => e.event > newest && fits(e, f));
    if (more.length > 0 && shown.length + more.length > perPage) older = shown[Math.max(0, perPage - more.length - 1)]?.event ?? older;
    shown = [...more, ...shown].slice(0, perPage);
  }
  drawEvents();
}

/** Forgets what is shown. */
export function clearEvents() {
  number++;
  shown = waiting = [];
  pages = [0];
  older = 0;
  drawEvents();
}

function drawEvents() {
  list(byId("event-rows"), shown, (e) => e.event, eventRow);
  setText(byId("no-events"), shown.length > 0 ? "" : older ? "None among those that were looked at: Older goes on." : "Nothing has happened that fits.");
  byId("events-older").disabled = !older;
  byId("events-newer").disabled = pages.length < 2;
  byId("events-turn").hidden = !older && pages.length < 2;
  setText(byId("events-page"), pages.length > 1 ? "Page " + count(pages.length) : "");
  byId("events-hold").setAttribute("aria-pressed", String(held));
  hide(byId("events-news"), waiting.length === 0, byId("event-rows"));
  setText(byId("events-news"), "Show " + counted(waiting.length, "new event"));
}

function eventRow(e) {
  return {
    node: make("li", { class: isWarning(e) ? "event warning" : "event" },
      timeOf(e.at), make("span", { class: "kind" }, plain(e.kind).replaceAll("_", " ")), make("span", { class: "said" }, ...sentenceOf(e))),
  };
}
