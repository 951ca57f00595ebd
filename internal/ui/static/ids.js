// Finding ids: one by its name, or many by how they begin or whose they are.

import { ask, Failure } from "./api.js";
import { byId, hide, list, make, name, plain, setChildren, setText } from "./dom.js";
import { ago, count, counted } from "./format.js";
import { state } from "./feed.js";
import { facts } from "./worker.js";
import { addressOf, callWorker, idRef, sentenceOf, timeOf, whyOf } from "./words.js";
import { askToKeep, askToWindDown } from "./change.js";

const form = byId("find");
const field = (id) => byId("find-" + id);
const perPage = 50;
const atOnce = 100; // requests until somebody wants to go on: each looks at some thousand rows
let asked = {}; // what the results are for
let row = null; // the placement that is shown
let pages = []; // cursors of the pages before, the present one last
let running = null; // ends the search that is under way

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams();
  const namespace = field("namespace").value.trim();
  if (namespace) query.set("namespace", namespace.startsWith("/") ? namespace : "/" + namespace);
  for (const key of ["hostname", "client"]) if (field(key).value.trim()) query.set(key, field(key).value.trim());
  const id = field("id").value.trim();
  if (id) query.set(field("begins").checked ? "prefix" : "id", id);
  const hash = "#/ids?" + query;
  if (location.hash === hash) showIds(query);
  else location.hash = hash;
});
byId("rows-back").addEventListener("click", () => turn(() => pages.pop()));
byId("rows-next").addEventListener("click", () => turn(() => pages.push(pages.next)));
byId("rows-stop").addEventListener("click", () => running?.abort());
byId("wind-down").addEventListener("click", () => askToWindDown(row, callWorker(row.clientId)));
byId("keep").addEventListener("click", () => askToKeep(row, callWorker(row.clientId)));

/** Shows what the parameters of the page's address ask for. */
export function showIds(query) {
  running?.abort();
  asked = Object.fromEntries(query);
  field("namespace").value = asked.namespace ?? "";
  field("hostname").value = asked.hostname ?? "";
  field("client").value = asked.client ?? "";
  field("id").value = asked.id ?? asked.prefix ?? "";
  field(asked.id ? "exact" : "begins").checked = true;
  if (!("id" in asked || "prefix" in asked)) field("exact").checked = !("client" in asked || "namespace" in asked);
  if (asked.hostname || asked.client) byId("find-more").open = true;
  row = null;
  byId("one").hidden = byId("many").hidden = true;
  setText(byId("find-fault"), "");
  if (asked.id) lookUp();
  else if (asked.prefix || asked.client || asked.namespace) {
    pages = [""];
    walk();
  }
}

/** Draws again what may have changed since, and what the form proposes. */
export function freshIds() {
  const known = [...new Set(state.overview.namespaces.map((n) => n.namespace))].slice(0, 200);
  list(byId("known-namespaces"), known, (n) => n, (n) => ({ node: make("option", { value: n }) }));
  if (row) lookUp(true);
}

/** Forgets what is shown. */
export function clearIds() {
  running?.abort();
  row = null;
  asked = {};
  byId("one").hidden = byId("many").hidden = true;
  for (const parent of ["one-title", "one-facts"]) byId(parent).replaceChildren();
  for (const parent of ["rows", "moves", "known-namespaces"]) list(byId(parent), []);
}

function fail(fault) {
  if (!(fault instanceof Failure)) throw fault;
  setText(byId("find-fault"), plain(fault.message[0].toUpperCase() + fault.message.slice(1)) + (/[.!?]$/.test(fault.message) ? "" : "."));
}

// One id.

async function lookUp(again = false) {
  if (!asked.namespace) {
    setText(byId("find-fault"), "An id is looked up in a namespace: name it.");
    field("namespace").focus();
    return;
  }
  const mine = asked;
  const query = { namespace: mine.namespace, id: mine.id, hostname: mine.hostname };
  try {
    const found = await ask("placement", { query });
    if (mine === asked) drawOne(found, found.moves);
  } catch (fault) {
    if (mine !== asked || (again && fault.kind !== "missing")) return; // the banner tells
    if (fault.kind !== "missing") {
      fail(fault);
      return;
    }
    await drawMissing(mine, query);
  }
}

// Who is not placed may have been: what happened is still there.
async function drawMissing(mine, query) {
  try {
    const page = await ask("events", { query: { ...query, limit: 10 } });
    if (mine === asked) drawOne(null, page.events);
  } catch (fault) {
    if (mine !== asked) return;
    if (fault.kind === "missing") drawOne(null, []);
    else fail(fault);
  }
}

function drawOne(found, moves) {
  row = found ?? { namespace: asked.namespace, id: asked.id, hostname: asked.hostname };
  byId("one").hidden = false;
  setChildren(byId("one-title"), name((row.hostname ?? asked.hostname ?? "") + row.namespace + "/" + row.id));
  byId("one-missing").hidden = found !== null;
  hide(byId("one-acts"), found === null, byId("one-title"));
  facts(byId("one-facts"), found === null ? [] : [
    ["Owner", make("a", { href: "#/fleet?" + new URLSearchParams({ worker: found.clientId }) }, name(found.advertiseUrl ? addressOf(found.advertiseUrl) : found.clientId))],
    ["Client", name(found.clientId)],
    ["Session", name(found.sessionId)],
    ["Epoch", make("span", { class: "figure" }, String(found.epoch))],
    ["Placed", make("span", {}, timeOf(found.placedAt), ", " + ago(found.placedAt))],
    ["Why", whyOf(found.why)],
  ]);
  list(byId("moves"), moves, (e) => e.event, (e) => ({ node: make("li", {}, timeOf(e.at), make("span", {}, ...sentenceOf(e))) }));
  byId("no-moves").hidden = moves.length > 0;
}

// Many ids.

function turn(change) {
  change();
  byId("many-title").focus({ preventScroll: true });
  walk();
}

// walk goes on until the page is full: with few ids that fit, the registry's own
// pages are short, or empty.
async function walk() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  const query = { namespace: asked.namespace, hostname: asked.hostname, prefix: asked.prefix, clientId: asked.client };
  const found = [];
  let cursor = pages.at(-1);
  byId("many").hidden = false;
  byId("rows-stop").hidden = false;
  draw(found, "Looking …");
  let told = "";
  try {
    for (let i = 1; ; i++) {
      const page = await ask("placements", { query: { ...query, cursor, limit: perPage - found.length }, signal: mine.signal });
      found.push(...page.placements);
      cursor = page.cursor ?? "";
      if (!cursor || found.length >= perPage) break;
      draw(found, `Looking … ${count(found.length)} so far`);
      if (i === atOnce) {
        told = "Not all ids have been looked at yet: Next goes on.";
        break;
      }
    }
  } catch (fault) {
    if (running !== mine) return; // another search has begun
    if (mine.signal.aborted) told = "Stopped.";
    else fail(fault);
  }
  if (running !== mine) return;
  running = null;
  hide(byId("rows-stop"), true, byId("many-title"));
  pages.next = cursor;
  draw(found, told || (found.length === 0 ? "No id is placed that fits." : ""));
  byId("rows-back").disabled = pages.length < 2;
  byId("rows-next").disabled = !cursor;
  byId("rows-turn").hidden = pages.length < 2 && !cursor;
}

function draw(found, told) {
  setText(byId("rows-told"), told || (pages.length > 1 || pages.next ? `Page ${count(pages.length)}, ${counted(found.length, "id")}` : counted(found.length, "id")));
  byId("rows-table").hidden = found.length === 0;
  list(byId("rows"), found, (r) => JSON.stringify([r.hostname ?? "", r.namespace, r.id]), (r) => {
    const [owner, epoch, placed, why] = ["Owner", "Epoch", "Placed", "Why"].map((label) => make("td", { role: "cell", "data-label": label }));
    epoch.classList.add("number");
    return {
      node: make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, idRef(r.namespace, r.id, r.hostname ?? asked.hostname)), owner, epoch, placed, why),
      update(now) {
        setChildren(owner, make("a", { href: "#/fleet?" + new URLSearchParams({ worker: now.clientId }) }, name(callWorker(now.clientId))));
        setText(epoch, String(now.epoch));
        setChildren(placed, timeOf(now.placedAt));
        setText(why, now.why ? plain(now.why.cause) : "");
      },
    };
  });
}
