// Words for what the registry says in codes.

import { make, name, plain } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { state } from "./feed.js";

/** The states of a worker, those to look at first. tone is of its mark. */
export const states = {
  leaving: { rank: 0, tone: "bad", text: "leaving", help: "displaced, or another process has its URL: it keeps its ids until its lease ends" },
  lapsed: { rank: 1, tone: "bad", text: "lease lapsed", help: "no heartbeat came for a whole lease; its ids are free" },
  superseded: { rank: 2, tone: "warn", text: "superseded", help: "workers of a higher worker epoch took its place" },
  gone: { rank: 3, tone: "warn", text: "gone", help: "it is not there any more; why will be known in a moment" },
  degraded: { rank: 4, tone: "bad", text: "degraded", help: "its advertise URL fails the probe: it gets no new ids" },
  draining: { rank: 5, tone: "warn", text: "draining", help: "it gets no new ids" },
  registering: { rank: 6, tone: "quiet", text: "registering", help: "its registration is being answered" },
  ready: { rank: 7, tone: "good", text: "ready", help: "it takes new ids" },
  left: { rank: 8, tone: "quiet", text: "left", help: "it said goodbye" },
};

/** Returns the words for a state, also of one that a newer server has. */
export const stateOf = (code) => states[code] ?? { rank: 3, tone: "quiet", text: plain(code), help: "" };

const causes = {
  new: "nobody had it",
  failover: "its owner’s session had ended",
  refused: "its owner refused to serve it",
  reclaimed: "the worker had it when it registered, and nobody else did",
};

const choices = {
  caller: "the calling instance’s own worker",
  affinity: "the worker that the affinity prefers",
  twoChoices: "the better of two at random, or the only one",
};

/** Returns why an id is where it is. */
export function whyOf(why) {
  if (!why) return "not recorded";
  const cause = causes[why.cause] ?? plain(why.cause);
  const choice = choices[why.choice] ?? plain(why.choice ?? "");
  return choice ? cause + "; chosen: " + choice : cause;
}

/** Returns an advertise URL without what all of them have. */
export const addressOf = (url) => plain(url).replace(/^http:\/\//, "").replace(/\/$/, "");

/** Returns how a worker is called: by its address, if that is known. */
export function callWorker(clientId) {
  const url = state.addresses.get(clientId);
  return url ? addressOf(url) : plain(clientId);
}

const workerRef = (clientId) => clientId
  ? make("a", { href: "#/fleet?" + new URLSearchParams({ worker: clientId }), title: plain(clientId) }, name(callWorker(clientId)))
  : "a worker";

/** Returns a link to an id. */
export function idRef(namespace, id, hostname) {
  const query = new URLSearchParams({ namespace, id });
  if (hostname) query.set("hostname", hostname);
  return make("a", { href: "#/ids?" + query }, name((hostname ?? "") + namespace + "/" + id));
}

const within = (e) => (e.deadlineMs === undefined || e.deadlineMs === null ? "" : ", within " + duration(e.deadlineMs));

const sentences = {
  registered: (e, w) => [w, " registered for ", namespacesOf(e)],
  lapsed: (e, w) => ["The lease of ", w, " lapsed"],
  deregistered: (e, w) => [w, " said goodbye"],
  drained: (e, w) => [w, " was drained by ", byOf(e), within(e)],
  undrained: (e, w) => ["The drain of ", w, " was taken back"],
  displaced: (e, w) => [w, " was displaced by ", byOf(e)],
  superseded: (e, w) => [w, " was told to stop: superseded by ", byOf(e)],
  degraded: (e, w) => [w, " fails the probe: ", plain(e.detail)],
  recovered: (e, w) => [w, " passes the probe again"],
  wind_down: (e) => e.detail === "revoked"
    ? ["The wind-down of ", idOf(e), " was taken back"]
    : [idOf(e), " was asked to close", within(e)],
  failover: (e, w) => [idOf(e), " went to ", w, " after the end of ", workerRef(e.fromClientId)],
  refused: (e, w) => [idOf(e), " went to ", w, ": ", workerRef(e.fromClientId), " refused to serve it"],
  quarantine: (e) => ["Placement in ", namespacesOf(e), " waits", e.deadlineMs ? " " + duration(e.deadlineMs) : "", ": ", plain(e.detail || "a quarantine")],
};

const warnings = new Set(["lapsed", "displaced", "superseded", "degraded", "refused", "quarantine"]);

/** Tells whether an event is one to look at. */
export const isWarning = (e) => warnings.has(e.kind);

const namespacesOf = (e) => name((e.hostname ? e.hostname + " " : "") + (e.namespaces ?? []).join(" "));
const idOf = (e) => (e.id ? idRef(e.namespaces?.[0] ?? "", e.id, e.hostname) : "an id");
const byOf = (e) => (e.by === "operator" ? "an operator" : e.by ? workerRef(e.by) : "somebody");

/** The kinds of events, in the order of a menu. */
export const kinds = Object.keys(sentences);

/** Returns an event as a sentence, in nodes. */
export function sentenceOf(e) {
  const make = sentences[e.kind];
  const said = make ? make(e, workerRef(e.clientId)) : [plain(e.kind)];
  if (e.epoch) said.push(", epoch " + e.epoch);
  if (e.skipped) said.push("; " + count(e.skipped) + " more moves before this were not recorded");
  return said;
}

/** Returns when: for people where they are, and in UTC as logs have it. */
export function timeOf(unixMs) {
  const at = new Date(unixMs);
  const utc = Number.isNaN(at.getTime()) ? "" : at.toISOString();
  return make("time", { datetime: utc, title: utc }, clock(unixMs));
}
