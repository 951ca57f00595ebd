// One worker in detail.

import { ask, Failure } from "./api.js";
import { byId, list, make, name, plain, setChildren, setText } from "./dom.js";
import { count, duration, figure, seconds } from "./format.js";
import { state } from "./feed.js";
import { callIt, drawState, isDrained, sinceOf, workerOf } from "./fleet.js";
import { askToDrain, askToUndrain } from "./change.js";

const dialog = byId("worker");
const mark = byId("worker-state");
const drain = byId("worker-drain");
const most = 50; // namespaces, and lines of stats
let shown = ""; // whose details are open

byId("worker-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  if (dialog.open) return; // opened again before the browser got round to telling
  shown = "";
  if (location.hash.includes("worker=")) history.replaceState(null, "", "#/fleet");
});
drain.addEventListener("click", () => {
  const w = workerOf(shown);
  dialog.close();
  if (w?.live) (isDrained(w) ? askToUndrain : askToDrain)(w);
});
byId("worker-stats").addEventListener("click", askStats);

/** Opens the details of a worker. */
export function openWorker(clientId) {
  if (shown === clientId && dialog.open) return;
  shown = clientId;
  byId("worker-told").replaceChildren();
  setText(byId("worker-fault"), "");
  drawWorker();
  if (!dialog.open) dialog.showModal();
}

/** Closes the details. */
export function closeWorker() {
  if (dialog.open) dialog.close();
}

/** Forgets what is shown. */
export function clearWorker() {
  closeWorker();
  for (const parent of ["worker-title", "worker-facts", "worker-told"]) byId(parent).replaceChildren();
  list(byId("worker-namespaces"), []);
}

/** Draws the details that are open, if any. */
export function drawWorker() {
  if (!shown || !state.overview) return;
  const w = workerOf(shown) ?? { clientId: shown, state: "not known", namespaces: {}, live: false, at: NaN };
  setText(byId("worker-title"), callIt(w));
  if (workerOf(shown)) drawState(mark, w);
  else setText(mark, "not known: it is not live, or not within your claims");
  facts(byId("worker-facts"), [
    ["Client", name(w.clientId)],
    ["Session", w.sessionId && name(w.sessionId)],
    ["Advertise URL", w.url && name(w.url)],
    ["Host name", w.hostname && name(w.hostname)],
    ["Environment", w.env && name(w.env)],
    ["Worker epoch", w.live && w.epoch !== undefined && count(w.epoch)],
    ["Registered", w.live && make("span", {}, ...sinceOf(w))],
    ["Lease left", w.expiresInMs !== undefined && seconds(w.expiresInMs)],
    ["Headroom", w.live && figure(w.headroom)],
    ["Drain", w.drainDeadline !== undefined && duration(w.drainDeadline * 1000) + " left"],
  ]);
  const namespaces = Object.entries(w.namespaces).sort((a, b) => b[1] - a[1]);
  list(byId("worker-namespaces"), namespaces.slice(0, most), ([ns]) => ns, ([ns]) => {
    const number = make("td", { class: "number" });
    const query = new URLSearchParams({ namespace: ns, client: w.clientId });
    if (w.hostname) query.set("hostname", w.hostname);
    const env = w.envs?.[ns];
    return {
      node: make("tr", {}, make("th", { scope: "row" }, make("a", { href: "#/ids?" + query }, name(ns)), env ? make("span", { class: "quiet" }, " env ", name(env)) : ""), number),
      update: ([, n]) => setText(number, count(n)),
    };
  });
  byId("worker-counts").hidden = namespaces.length === 0;
  setText(byId("worker-more"), namespaces.length > most ? `and ${count(namespaces.length - most)} more namespaces` : "");
  drain.hidden = !w.live || w.state === "leaving";
  setText(drain, isDrained(w) ? "Undrain…" : "Drain…");
  byId("worker-stats").hidden = !w.live || w.state === "leaving";
}

/** Draws a list of facts; those without a value are left out. */
export function facts(parent, pairs) {
  setChildren(parent, ...pairs.filter(([, value]) => value || value === 0).flatMap(([label, value]) => [make("dt", {}, label), make("dd", {}, value)]));
}

async function askStats() {
  const clientId = shown;
  const button = byId("worker-stats");
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  setText(byId("worker-fault"), "");
  try {
    const answer = await ask("stats", { query: { clientId } });
    if (shown === clientId) tellStats(answer[clientId] ?? {});
  } catch (fault) {
    if (!(fault instanceof Failure)) throw fault;
    if (shown === clientId) setText(byId("worker-fault"), "No stats: " + plain(fault.message));
  } finally {
    button.setAttribute("aria-disabled", "false");
  }
}

// tellStats shows what the worker says of itself: it may be anything.
function tellStats(stats) {
  if (typeof stats.error === "string") {
    setText(byId("worker-fault"), "No stats: " + plain(stats.error));
    return;
  }
  const process = stats.process ?? {};
  const instances = Array.isArray(stats.instances) ? stats.instances : [];
  const sum = (field) => instances.reduce((all, i) => all + (Number(i?.[field]) || 0), 0);
  facts(byId("worker-told"), [
    ["Process up", known(process.uptimeMs, duration)],
    ["Memory", known(process.rssBytes, (n) => count(n / 2 ** 20) + " MiB")],
    ["CPU", known(process.cpuPercent, (n) => figure(n) + " %")],
    ["Instances", count(instances.length)],
    ["Connections", count(sum("connections"))],
    ["Tasks", count(sum("tasks"))],
    ["Lease flaps", known(stats.leaseFlaps, count)],
    ["Registered again", known(stats.reregistrations, count)],
  ]);
}

const known = (value, say) => (typeof value === "number" ? say(value) : undefined);
