// The page: signing in, which view is shown, and how fresh it is.

import { base, Failure, hasToken, useToken } from "./api.js";
import { byId, hide, plain, setText } from "./dom.js";
import { clock, counted, duration } from "./format.js";
import { begin, end, listen, refresh, state } from "./feed.js";
import { announce } from "./announce.js";
import { clearFleet, drawFleet, plot } from "./fleet.js";
import { clearWorker, closeWorker, drawWorker, openWorker } from "./worker.js";
import { clearIds, freshIds, showIds } from "./ids.js";
import { clearEvents, restart, takeEvents } from "./events.js";
import { callWorker } from "./words.js";

const views = { fleet: "Fleet", ids: "Ids", events: "Events" };
let signedIn = false;
let view = "";

// Signing in.

// enter tries, and tells whether that was good for something. Before anybody has
// said who they are, the browser may say it by a cookie.
async function enter() {
  try {
    await begin();
  } catch (fault) {
    if (!(fault instanceof Failure)) throw fault;
    return fault;
  }
  signedIn = true;
  setText(byId("sign-in-fault"), "");
  byId("token").value = "";
  byId("sign-out").hidden = !hasToken();
  view = "";
  setPhase("signed-in");
  route();
  drawEverything();
  return null;
}

async function open(failures = 0) {
  setPhase("opening");
  const fault = await enter();
  if (!fault) return;
  if (isIdentity(fault)) {
    leave(hasToken() || fault.kind === "forbidden" ? fault : null);
    return;
  }
  const wait = Math.min(30, 2 ** failures);
  setText(byId("opening-fault"), sentence(fault.message) + ` Trying again in ${wait} s.`);
  byId("opening-acts").hidden = false;
  opening = setTimeout(open, wait * 1000, failures + 1);
}

const isIdentity = (fault) => fault.kind === "unknown" || fault.kind === "forbidden";
let opening = 0;

byId("open-now").addEventListener("click", () => {
  clearTimeout(opening);
  open();
});
byId("open-otherwise").addEventListener("click", () => {
  clearTimeout(opening);
  leave(null);
});

function leave(fault) {
  signedIn = false;
  end();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  clearFleet();
  clearWorker();
  clearIds();
  clearEvents();
  setPhase("signed-out");
  refuse(fault);
}

// refuse says in the form what is wrong, and forgets a token that is no good.
function refuse(fault) {
  const mine = fault !== null && isIdentity(fault) && hasToken();
  byId("token").setAttribute("aria-invalid", String(mine));
  setText(byId("sign-in-fault"), faultOf(fault));
  if (!fault || mine) useToken("", false);
  byId("token").focus();
  byId("token").select();
}

function faultOf(fault) {
  switch (fault?.kind) {
    case undefined: return "";
    case "unknown": return hasToken() ? "This token is not known here." : "You are not signed in any more.";
    case "forbidden": return "You are known here, but may not see the fleet: " + sentence(fault.message, false);
    case "away": return "Whether you may come in can’t be told for now: " + sentence(fault.message, false) + " Try again in a moment.";
    default: return sentence(fault.message);
  }
}

function sentence(message, capital = true) {
  const text = plain(message);
  return (capital ? text.charAt(0).toUpperCase() + text.slice(1) : text) + (/[.!?…]$/.test(text) ? "" : ".");
}

byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = byId("sign-in-go");
  if (button.getAttribute("aria-disabled") === "true") return;
  const token = byId("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) {
    byId("token").setAttribute("aria-invalid", "true");
    setText(byId("sign-in-fault"), token ? "A token is made of letters, digits and signs, without spaces." : "Enter a token.");
    byId("token").focus();
    byId("token").select();
    return;
  }
  useToken(token, byId("keep-token").checked);
  button.setAttribute("aria-disabled", "true");
  const fault = await enter();
  button.setAttribute("aria-disabled", "false");
  if (fault) refuse(fault);
  else byId(view + "-title").focus({ preventScroll: true });
});
byId("sign-out").addEventListener("click", () => {
  useToken("", false);
  leave(null);
});

function setPhase(phase) {
  document.body.dataset.phase = phase;
  byId("sign-in").hidden = phase !== "signed-out";
  byId("main").hidden = byId("views").hidden = phase !== "signed-in";
  byId("opening").hidden = phase !== "opening";
  if (phase === "opening") byId("opening-acts").hidden = true;
  if (phase !== "signed-in") document.title = "pinboard";
  drawFreshness();
}

// Views.

function route() {
  if (!signedIn) return;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const wanted = path in views ? path : "fleet";
  const parameters = new URLSearchParams(query);
  const changed = wanted !== view;
  view = wanted;
  for (const each of Object.keys(views)) {
    byId(each).hidden = each !== view;
    const link = byId("to-" + each);
    if (each === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = views[view] + " – pinboard";
  if (view === "fleet" && parameters.get("worker")) openWorker(parameters.get("worker"));
  else closeWorker();
  if (view === "ids") {
    showIds(parameters);
    freshIds();
  }
  if (view === "events" && changed) restart();
  if (changed) scrollTo(0, 0);
}

addEventListener("hashchange", () => {
  const before = view;
  route();
  if (signedIn && view !== before) byId(view + "-title").focus({ preventScroll: true });
});

function drawEverything() {
  plot();
  drawFleet();
  drawWorker();
  if (view === "ids") freshIds();
  drawFreshness();
}

listen((what, detail) => {
  switch (what) {
    case "fleet":
      if (signedIn) drawEverything();
      break;
    case "events":
      if (!signedIn) break;
      if (view === "events") takeEvents(detail);
      if (view === "fleet") drawFleet();
      sayEvents(detail);
      break;
    case "trouble":
      drawFreshness();
      break;
    case "ended":
      leave(detail);
  }
});

const sayings = { registered: "registered", lapsed: "lapsed", deregistered: "left", drained: "drains", undrained: "is no longer drained", degraded: "is degraded", recovered: "has recovered", displaced: "was displaced" };

function sayEvents(events) {
  for (const [kind, saying] of Object.entries(sayings)) {
    const some = events.filter((e) => e.kind === kind);
    if (some.length === 1) announce(callWorker(some[0].clientId) + " " + saying);
    else if (some.length > 1) announce(counted(some.length, "worker") + ": " + kind);
  }
}

// How fresh it is.

const troubles = { lost: "Connection lost", away: "The server can’t answer for now", refused: "The server refuses", missing: "The server does not know this page’s calls" };
let told = "";

function drawFreshness() {
  const { trouble } = state;
  const banner = byId("trouble");
  if (view) hide(banner, !signedIn || !trouble, byId(view + "-title"));
  byId("main").toggleAttribute("data-stale", Boolean(signedIn && trouble));
  const status = !signedIn ? "" : trouble ? "trouble" : state.streaming ? "live" : "polling";
  document.body.dataset.fresh = status;
  setText(byId("status"), { "": "", trouble: "Not up to date", live: "Live", polling: "Updating" }[status]);
  if (trouble && signedIn) {
    const now = performance.now();
    setText(byId("why"), `${troubles[trouble.kind] ?? "Trouble"}. ${sentence(trouble.message)}`);
    const age = now - state.at;
    setText(byId("age"), `What is shown is from ${clock(Date.now() - age)}, ${duration(age)} ago. ` +
      (trouble.next ? `Trying again in ${duration(Math.max(0, trouble.next - now))}.` : "Trying again …"));
  }
  if (told === "trouble" && status && status !== "trouble") announce("Connected again");
  told = status || told;
}

setInterval(drawFreshness, 1000);
byId("try-now").addEventListener("click", () => refresh(true));
addEventListener("online", () => refresh(true));
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") refresh();
});

setText(byId("where"), base.host + base.pathname.replace(/\/registry\/$/, ""));
byId("insecure").hidden = isSecureContext;
open();
