// What the page knows of the fleet, kept up to date: counts by asking at
// intervals, what happens by a stream. Views listen, and draw what is here.

import { ask, Failure, stream } from "./api.js";
import { read } from "./sse.js";

const keptEvents = 500;
const silence = 40_000; // the server says something every 15 s
const unseen = 30_000; // after how long out of sight the stream is closed
const keptGone = 100;
const goneFor = 10 * 60_000;
const keptAddresses = 5000;

/** How what is shown came about. Null until there is something. */
export let state = empty();

function empty() {
  return {
    overview: null, workers: new Map(), health: null,
    at: 0, // when they were had, by performance.now
    lease: 0, // the longest that was left of a lease: about its whole length
    events: [], // the newest first
    gone: new Map(), // when workers that were there were missed, by clientId
    addresses: new Map(), // advertise URLs, also of workers that have ended, by clientId
    trouble: null, // why nothing newer is to be had: {kind, message, since, next}
    streaming: false,
  };
}

const listeners = new Set();

/** Calls a function with what changed: "fleet", "events", "trouble" or "ended". */
export function listen(listener) {
  listeners.add(listener);
}

function tell(what, detail) {
  for (const listener of listeners) listener(what, detail);
}

let life = null; // ends what runs
let wake = () => {}; // ends the wait for the next poll, and
let wakeStream = () => {}; // that for the next stream
let due = false; // somebody called refresh while a poll was under way
let polled = 0;
let took = 0;

/** Asks once, and goes on if that worked; else it throws a Failure. */
export async function begin() {
  end();
  await ask("health"); // one refusal is enough, if it is one
  await poll(AbortSignal.timeout(60_000));
  life = new AbortController();
  run(pollOn, life.signal);
  run(streamOn, life.signal);
}

/** Stops, and forgets what it knew. */
export function end() {
  life?.abort();
  life = null;
  state = empty();
}

function run(task, signal) {
  task(signal).catch((fault) => {
    if (!signal.aborted) throw fault;
  });
}

/** Asks again soon or, for a person who waits, now. */
export function refresh(now = false) {
  due = true;
  wake(now);
}

async function poll(signal) {
  const began = performance.now();
  due = false;
  const [overview, workers, health] = await Promise.all([
    ask("overview", { signal }), ask("workers", { signal }), ask("health", { signal }),
  ]);
  signal.throwIfAborted();
  took = performance.now() - began;
  polled = state.at = performance.now();
  state.lease = workers.workers.reduce((most, w) => Math.max(most, w.expiresInMs), state.lease);
  noteGone(overview);
  state.overview = overview;
  state.workers = new Map(workers.workers.map((w) => [w.sessionId, w]));
  for (const w of workers.workers) noteAddress(w.clientId, w.advertiseUrl);
  state.health = health;
  if (!state.streaming) await catchUp(signal);
  if (state.trouble) wakeStream();
  state.trouble = null;
  tell("fleet");
}

async function pollOn(signal) {
  for (let failures = 0; ;) {
    await nap(failures ? backoff(failures, state.trouble.retryAfter) : interval(), signal, failures > 0);
    await inSight(signal);
    try {
      await poll(signal);
      failures = 0;
    } catch (fault) {
      signal.throwIfAborted();
      if (!(fault instanceof Failure)) throw fault;
      if (fault.kind === "unknown" || fault.kind === "forbidden") {
        end();
        tell("ended", fault);
        return;
      }
      failures++;
      state.trouble = {
        kind: fault.kind, message: fault.message, retryAfter: fault.retryAfter, since: state.trouble?.since ?? performance.now(), next: 0,
      };
    }
  }
}

// The larger the fleet and the slower the server, the less often.
function interval() {
  const workers = state.overview.workers.length;
  return Math.min(15_000, Math.max(2000 + 10 * workers, 5 * took));
}

// Half of it is chance: pages that lost a server together come back apart.
function backoff(failures, atLeast) {
  const most = Math.min(30_000, 1000 * 2 ** (failures - 1));
  return Math.max(atLeast, most / 2 + (Math.random() * most) / 2);
}

// Not at once after the last call, whatever happens in between.
const gap = () => Math.max(500, 3 * took, 5 * state.overview.workers.length);

// nap waits, or less if somebody calls refresh; while there is trouble only a
// person can shorten it.
async function nap(ms, signal, inTrouble) {
  if (inTrouble) {
    state.trouble.next = performance.now() + ms;
    tell("trouble");
  }
  await new Promise((done) => {
    let timer = setTimeout(done, ms);
    wake = (now) => {
      if (inTrouble && !now) return;
      clearTimeout(timer);
      timer = setTimeout(done, now ? 0 : Math.max(0, Math.min(ms, polled + gap() - performance.now())));
    };
    signal.addEventListener("abort", done, { once: true });
    if (due && !inTrouble) wake();
  });
  wake = () => {};
  signal.throwIfAborted();
  if (inTrouble) {
    state.trouble.next = 0;
    tell("trouble");
  }
}

async function inSight(signal) {
  while (document.visibilityState === "hidden") {
    await new Promise((done) => {
      document.addEventListener("visibilitychange", done, { once: true });
      signal.addEventListener("abort", done, { once: true });
    });
    signal.throwIfAborted();
  }
}

function noteAddress(clientId, url) {
  state.addresses.delete(clientId); // so that the oldest comes first
  state.addresses.set(clientId, url);
  if (state.addresses.size > keptAddresses) state.addresses.delete(state.addresses.keys().next().value);
}

// Who was there and is not any more stays for a while, until an event says why.
function noteGone(overview) {
  const live = new Set(overview.workers.map((w) => w.clientId));
  for (const { clientId, hostname } of state.overview?.workers ?? []) {
    if (!live.has(clientId)) state.gone.set(clientId, { clientId, hostname, at: Date.now(), state: "gone" });
  }
  for (const [clientId, g] of state.gone) {
    if (live.has(clientId) || Date.now() - g.at > goneFor) state.gone.delete(clientId);
  }
  while (state.gone.size > keptGone) state.gone.delete(state.gone.keys().next().value);
}

// How a worker ended, the reason before what came of it: who was displaced lapses, too.
const endings = { superseded: "superseded", displaced: "superseded", deregistered: "left", lapsed: "lapsed" };
const reasons = Object.keys(endings);

/** Returns workers that ended within the last minutes, and how. */
export function goneWorkers() {
  const live = new Set(state.overview.workers.map((w) => w.clientId));
  const found = new Map(state.gone);
  for (const e of state.events) {
    if (Date.now() - e.at > goneFor) break;
    if (!endings[e.kind] || live.has(e.clientId)) continue;
    const before = found.get(e.clientId);
    if (before?.kind && reasons.indexOf(before.kind) <= reasons.indexOf(e.kind)) continue;
    if (!before && found.size >= 2 * keptGone) continue;
    found.set(e.clientId, { clientId: e.clientId, hostname: e.hostname, at: e.at, kind: e.kind, state: endings[e.kind] });
  }
  return [...found.values()].map((g) => ({ ...g, url: state.addresses.get(g.clientId) }));
}

// Events.

function noteAddresses(events) {
  for (const e of events) {
    if (e.kind === "registered" && e.detail && !state.addresses.has(e.clientId)) noteAddress(e.clientId, e.detail);
  }
}

function take(events) {
  noteAddresses(events);
  const known = new Set(state.events.map((e) => e.event));
  const fresh = events.filter((e) => !known.has(e.event));
  if (fresh.length === 0) return;
  state.events = [...fresh, ...state.events].sort((a, b) => b.event - a.event).slice(0, keptEvents);
  tell("events", fresh);
}

async function catchUp(signal) {
  const page = await ask("events", { query: { limit: 100 }, signal });
  if (state.events.length > 0) {
    take(page.events);
    return;
  }
  noteAddresses(page.events);
  state.events = page.events; // they are no news
  tell("events", []);
}

async function streamOn(signal) {
  for (let failures = 0; ;) {
    await inSight(signal);
    try {
      await follow(signal);
      failures = 0;
    } catch (fault) {
      signal.throwIfAborted();
      failures++;
    }
    state.streaming = false;
    if (document.visibilityState !== "hidden") refresh(); // which finds out what it is
    await new Promise((done) => {
      wakeStream = done;
      setTimeout(done, backoff(failures + 1, 0));
      signal.addEventListener("abort", done, { once: true });
    });
    signal.throwIfAborted();
  }
}

// follow reads the stream until it ends, is silent for too long, or nobody has
// seen the page for a while: browsers have few connections, and servers few
// streams.
async function follow(signal) {
  const ours = new AbortController();
  const stop = () => ours.abort();
  let timer = setTimeout(stop, silence);
  let hidden = 0;
  const looked = () => {
    clearTimeout(hidden);
    if (document.visibilityState === "hidden") hidden = setTimeout(stop, unseen);
  };
  document.addEventListener("visibilitychange", looked);
  signal.addEventListener("abort", stop);
  try {
    const response = await stream(state.events[0]?.event ?? 0, ours.signal);
    state.streaming = true;
    for await (const events of read(response.body)) {
      clearTimeout(timer);
      timer = setTimeout(stop, silence);
      if (events.length === 0) continue;
      take(events);
      refresh();
    }
  } finally {
    clearTimeout(timer);
    clearTimeout(hidden);
    document.removeEventListener("visibilitychange", looked);
    signal.removeEventListener("abort", stop);
    ours.abort();
  }
}
