// Calls of pinboard's registry.

/** The registry's URL, wherever it is mounted: the page is at "ui" in it. */
export const base = new URL("./", document.baseURI);

const patience = 10_000;
const kept = "pinboard operator " + base.pathname;
let token = recall();

function recall() {
  try {
    return sessionStorage.getItem(kept) ?? "";
  } catch {
    return ""; // the browser keeps nothing for this page
  }
}

/**
 * Has calls made with a token; "" leaves it to what the browser sends by itself. It
 * stays in memory, and if keep is set until the tab is closed.
 */
export function useToken(next, keep) {
  token = next;
  try {
    if (keep && next) sessionStorage.setItem(kept, next);
    else sessionStorage.removeItem(kept);
  } catch {
    // It is in memory all the same.
  }
}

/** Tells whether there is a token. */
export const hasToken = () => token !== "";

/**
 * Failure is why a call has no answer: kind is "lost" (nobody answers), "unknown"
 * (who calls is not known), "forbidden", "missing", "away" (not for now) or
 * "refused".
 */
export class Failure extends Error {
  constructor(kind, message, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter; // in ms
  }
}

/** Calls the registry with GET or, with a body, POST, and returns the answer. */
export async function ask(path, { query, body, signal } = {}) {
  const limit = AbortSignal.timeout(patience);
  const response = await call(path, {
    query, body, signal: signal ? AbortSignal.any([signal, limit]) : limit, outer: signal,
  });
  try {
    return await response.json();
  } catch {
    signal?.throwIfAborted();
    throw new Failure("lost", "The answer broke off.");
  }
}

/** Returns the stream of events after that number, a response to be read. */
export function stream(after, signal) {
  const headers = { Accept: "text/event-stream" };
  if (after) headers["Last-Event-ID"] = String(after);
  return call("events", { headers, signal, outer: signal });
}

async function call(path, { query, headers, body, signal, outer }) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== "" && value !== undefined) url.searchParams.set(name, value);
  }
  const sent = new Headers(headers);
  if (token) sent.set("Authorization", "Bearer " + token);
  if (body) sent.set("Content-Type", "application/json");
  let response;
  try {
    response = await fetch(url, {
      method: body ? "POST" : "GET", headers: sent, body: body && JSON.stringify(body), signal,
      credentials: "same-origin", cache: "no-store", redirect: "manual", referrerPolicy: "no-referrer",
    });
  } catch {
    outer?.throwIfAborted();
    throw new Failure("lost", signal.aborted ? "The server takes too long to answer." : "The server can’t be reached.");
  }
  if (response.ok) return response;
  throw await failureOf(response);
}

async function failureOf(response) {
  if (response.type === "opaqueredirect") {
    return new Failure("refused", "Something in front of the server sends calls elsewhere: a sign-in there may have ended. Load this page anew.");
  }
  let message = "";
  try {
    message = (await response.json()).error;
  } catch {
    // It is not pinboard's own.
  }
  if (typeof message !== "string" || !message) message = "the server answers with status " + response.status;
  const kinds = { 401: "unknown", 403: "forbidden", 404: "missing", 429: "away" };
  const kind = kinds[response.status] ?? (response.status >= 500 ? "away" : "refused");
  const wait = Number(response.headers.get("Retry-After"));
  return new Failure(kind, message.slice(0, 300), wait > 0 ? Math.min(wait, 60) * 1000 : 0);
}
