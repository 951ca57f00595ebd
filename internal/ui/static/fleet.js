// The fleet: figures, namespaces, workers.

import { byId, hide, list, make, name, plain, setChildren, setText } from "./dom.js";
import { ago, count, duration, figure, seconds } from "./format.js";
import { goneWorkers, state } from "./feed.js";
import { addressOf, stateOf, states, timeOf } from "./words.js";
import { chart } from "./chart.js";
import { pager } from "./pager.js";
import { askToDrain, askToUndrain } from "./change.js";

const filter = byId("filter");
const only = byId("only");
const order = byId("order");
const graph = chart(byId("chart"));
const namespacePages = pager(byId("namespace-pages"), 10, "namespace", drawNamespaces);
const workerPages = pager(byId("worker-pages"), 50, "worker", drawWorkers);

const orders = {
  attention: (a, b) => stateOf(a.state).rank - stateOf(b.state).rank,
  placements: (a, b) => b.placements - a.placements,
  headroom: (a, b) => a.headroom - b.headroom,
  lease: (a, b) => (a.expiresInMs ?? Infinity) - (b.expiresInMs ?? Infinity),
  newest: (a, b) => (b.registeredAt ?? 0) - (a.registeredAt ?? 0),
};

for (const code of Object.keys(states)) only.append(make("option", { value: code }, states[code].text));
for (const control of [filter, only, order]) {
  control.addEventListener("input", () => {
    workerPages.first();
    if (state.overview) drawWorkers();
  });
}

/** Returns all workers, live and gone, with all that is known of each. */
export function workersNow() {
  const live = state.overview.workers.map((o) => {
    const { namespaces: _, ...more } = state.workers.get(o.sessionId) ?? {};
    return { ...more, ...o, url: state.addresses.get(o.clientId), live: true };
  });
  return [...live, ...goneWorkers().map((g) => ({ placements: 0, headroom: 0, namespaces: {}, live: false, ...g }))];
}

/** Returns the worker, undefined if it is not known. */
export const workerOf = (clientId) => workersNow().find((w) => w.clientId === clientId);

/** Draws what is known. */
export function drawFleet() {
  const { overview, health } = state;
  const ready = overview.workers.filter((w) => w.state === "ready");
  setText(byId("placements"), count(overview.placements));
  setText(byId("workers"), count(overview.workers.length));
  setText(byId("ready"), ready.length === overview.workers.length ? "all ready" : count(ready.length) + " ready");
  setText(byId("headroom"), figure(ready.reduce((sum, w) => sum + w.headroom, 0)));
  setText(byId("quarantine"), health.quarantineMs > 0 ? duration(health.quarantineMs) : "none");
  byId("quarantine").classList.toggle("warn", health.quarantineMs > 0);
  drawNamespaces();
  drawWorkers();
}

/** Takes down a figure for the chart. */
export const plot = () => graph.add(state.overview.placements);

/** Forgets what is shown. */
export function clearFleet() {
  graph.clear();
  for (const rows of ["namespace-rows", "worker-rows"]) list(byId(rows), []);
}

function drawNamespaces() {
  const all = state.overview.namespaces;
  byId("namespaces").hidden = all.length === 0;
  list(byId("namespace-rows"), namespacePages.cut(all), (n) => JSON.stringify([n.hostname ?? "", n.namespace]), (n) => {
    const [placements, workers, headroom] = [cell("Placements"), cell("Ready workers"), cell("Headroom")];
    const node = make("tr", { role: "row" },
      make("th", { scope: "row", role: "rowheader" }, name(n.namespace), n.hostname ? make("span", { class: "quiet" }, " at ", name(n.hostname)) : ""),
      placements, workers, headroom);
    return {
      node,
      update(now) {
        setText(placements, count(now.placements));
        setText(workers, `${count(now.ready)} of ${count(now.workers)}`);
        workers.classList.toggle("warn", now.ready === 0);
        setText(headroom, figure(now.headroom));
      },
    };
  });
}

const cell = (label) => make("td", { role: "cell", class: "number", "data-label": label });

function drawWorkers() {
  const all = workersNow();
  const text = filter.value.trim().toLowerCase();
  const shown = all.filter((w) => (!only.value || w.state === only.value) && (!text || textOf(w).includes(text)));
  const compare = orders[order.value];
  shown.sort((a, b) => Number(b.live) - Number(a.live) && order.value !== "attention"
    ? Number(b.live) - Number(a.live)
    : compare(a, b) || (a.clientId < b.clientId ? -1 : 1));
  list(byId("worker-rows"), workerPages.cut(shown, all.length), (w) => w.clientId, workerRow);
  setText(byId("no-workers"), shown.length > 0 ? "" : all.length > 0 ? "No worker matches." : "No worker has registered.");
}

const textOf = (w) => [w.clientId, w.url, w.hostname, w.env, ...Object.keys(w.namespaces)].join(" ").toLowerCase();

function workerRow(first) {
  let now = first;
  const mark = make("span", { class: "state" });
  const title = make("a", { href: "#/fleet?" + new URLSearchParams({ worker: first.clientId }), class: "title" });
  const under = make("span", { class: "quiet under" });
  const namespaces = make("td", { role: "cell", class: "namespaces", "data-label": "Placements by namespace" });
  const [placements, headroom, lease] = [cell("Placements"), cell("Headroom"), cell("Lease left")];
  const button = make("button", { type: "button", on: { click: () => (isDrained(now) ? askToUndrain : askToDrain)(now) } });
  const node = make("tr", { role: "row" },
    make("td", { role: "cell", class: "mark" }, mark),
    make("th", { scope: "row", role: "rowheader" }, title, under),
    namespaces, placements, headroom, lease, make("td", { role: "cell", class: "act" }, button));
  return {
    node,
    update(w) {
      now = w;
      drawState(mark, w);
      setChildren(title, name(w.url ? addressOf(w.url) : w.clientId));
      setChildren(under, w.url ? name(w.clientId) : "", ...bindingOf(w));
      setChildren(namespaces, ...countsOf(w));
      setText(placements, w.live ? count(w.placements) : "–");
      setText(headroom, w.live ? figure(w.headroom) : "–");
      setText(lease, w.expiresInMs === undefined ? "–" : seconds(w.expiresInMs));
      lease.classList.toggle("warn", w.expiresInMs < state.lease / 2);
      node.classList.toggle("past", !w.live);
      hide(button, !w.live || w.state === "leaving", title);
      setText(button, isDrained(w) ? "Undrain…" : "Drain…");
      button.setAttribute("aria-label", (isDrained(w) ? "Undrain " : "Drain ") + callIt(w));
    },
  };
}

/** Tells whether a worker drains, of its own accord or an operator's. */
export const isDrained = (w) => Boolean(w.draining) || w.state === "draining";

/** Returns how people call a worker. */
export const callIt = (w) => (w.url ? addressOf(w.url) : plain(w.clientId));

/** Draws a state with all that belongs to it. */
export function drawState(mark, w) {
  const s = stateOf(w.state);
  const parts = [make("span", { class: "dot " + s.tone, "aria-hidden": "true" }), s.text];
  if (w.drainDeadline !== undefined) parts.push(make("span", { class: "quiet" }, w.drainDeadline > 0 ? " " + duration(w.drainDeadline * 1000) + " left" : " deadline passed"));
  if (w.degraded && w.state !== "degraded") parts.push(make("span", { class: "quiet" }, " degraded"));
  if (!w.live) parts.push(make("span", { class: "quiet" }, " " + ago(w.at)));
  mark.title = s.help;
  setChildren(mark, ...parts);
}

function bindingOf(w) {
  const parts = [];
  if (w.hostname) parts.push(" at ", name(w.hostname));
  if (w.env) parts.push(" env ", name(w.env));
  return parts;
}

function countsOf(w) {
  const all = Object.entries(w.namespaces).sort((a, b) => b[1] - a[1]);
  const parts = all.slice(0, 3).map(([ns, n]) => make("span", { class: "count" }, name(ns), " ", make("b", {}, count(n))));
  if (all.length > 3) parts.push(make("span", { class: "count quiet" }, "and " + count(all.length - 3) + " more"));
  return parts;
}

/** Returns when a worker registered, in nodes. */
export const sinceOf = (w) => (w.registeredAt ? [timeOf(w.registeredAt), ", " + ago(w.registeredAt)] : ["unknown"]);
