// What changes the fleet: each asks first, and says what will happen.

import { ask, Failure } from "./api.js";
import { byId, make, name, plain, setChildren, setText } from "./dom.js";
import { count, counted } from "./format.js";
import { refresh, state } from "./feed.js";
import { announce } from "./announce.js";
import { addressOf } from "./words.js";

const dialog = byId("change");
const form = byId("change-form");
const deadline = byId("deadline");
const go = byId("change-go");
let now = null; // what the dialog asks about

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("change-cancel").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  if (dialog.open) return; // opened again before the browser got round to telling
  const { from } = now;
  now = null;
  byId("change-title").replaceChildren();
  byId("change-text").replaceChildren();
  // The browser gives the focus back, unless what had it is not there any more.
  if (!from.isConnected || from.hidden) document.querySelector("main > section:not([hidden]) > h1")?.focus({ preventScroll: true });
});
deadline.addEventListener("focus", () => {
  byId("ending-soon").checked = true;
});

// open shows the dialog. ending says whether there is a deadline to choose: "",
// "maybe" or "always".
function open({ title, text, verb, ending = "", call, done }) {
  now = { ending, call, done, from: document.activeElement };
  setText(byId("change-title"), title);
  setChildren(byId("change-text"), ...text.map((parts) => make("p", {}, ...[parts].flat())));
  byId("endings").hidden = ending === "";
  byId("endings").disabled = ending === "";
  byId("ending-none").hidden = ending !== "maybe";
  byId("ending-soon").hidden = ending !== "maybe";
  byId(ending === "always" ? "ending-soon" : "ending-open").checked = true;
  deadline.value = "30";
  deadline.setAttribute("aria-invalid", "false");
  setText(go, verb);
  go.classList.toggle("strong", true);
  setText(byId("change-fault"), "");
  busy(false);
  dialog.showModal();
  byId("change-cancel").focus();
}

function busy(on) {
  go.setAttribute("aria-disabled", String(on));
  dialog.toggleAttribute("data-busy", on);
}

async function submit() {
  const asked = now;
  if (!asked || dialog.hasAttribute("data-busy")) return;
  const limited = asked.ending === "always" || (asked.ending === "maybe" && byId("ending-soon").checked);
  const wrong = limited && (deadline.value === "" || !deadline.validity.valid);
  deadline.setAttribute("aria-invalid", String(wrong));
  if (wrong) {
    setText(byId("change-fault"), "The deadline is a number of seconds, without a fraction, up to a day.");
    deadline.focus();
    return;
  }
  busy(true);
  setText(byId("change-fault"), "");
  try {
    await asked.call(limited ? Number(deadline.value) : undefined);
  } catch (fault) {
    if (!(fault instanceof Failure)) throw fault;
    if (now === asked) setText(byId("change-fault"), plain(faultOf(fault)));
    return;
  } finally {
    if (now === asked) busy(false);
    refresh(true);
  }
  announce(asked.done);
  if (now === asked) dialog.close();
}

function faultOf(fault) {
  switch (fault.kind) {
    case "lost": return fault.message + " Whether it was done is not known: look before you try again.";
    case "forbidden": return "Not allowed: " + fault.message + ".";
    case "missing": return "Not there any more: " + fault.message + ".";
    case "unknown": return "Your sign-in is not accepted any more.";
    default: return "Not done: " + fault.message + ".";
  }
}

const called = (w) => (w.url ? addressOf(w.url) : plain(w.clientId));

/** Asks whether a worker is to be drained. */
export function askToDrain(w) {
  const text = [
    [name(w.clientId), " serves ", ...listed(Object.keys(w.namespaces)), " and holds ", make("b", {}, counted(w.placements, "id")), "."],
    "It gets no new ids from now on. The ids that it holds stay until their instances close: it closes each as soon as nothing holds it, and the next request for the id places it elsewhere.",
  ];
  const last = state.overview.namespaces.filter((n) => n.namespace in w.namespaces && (n.hostname ?? "") === (w.hostname ?? "") && n.ready <= (w.state === "ready" ? 1 : 0));
  if (last.length > 0) text.push(make("strong", { class: "warn" }, "No other worker takes new ids of ", ...listed(last.map((n) => n.namespace)), ": requests for them will get a 503."));
  open({
    title: "Drain " + called(w) + "?", text, verb: "Drain", ending: "maybe", done: called(w) + " drains",
    call: (within) => ask("drain", { body: { clientId: w.clientId, deadline: within } }),
  });
}

/** Asks whether the drain of a worker is to be taken back. */
export function askToUndrain(w) {
  open({
    title: "Take the drain of " + called(w) + " back?",
    text: [
      [name(w.clientId), " gets new ids again. Ids that have moved stay where they are."],
      "A worker that drains of its own accord, because it is about to end, goes on with that.",
    ],
    verb: "Undrain", done: called(w) + " is no longer drained",
    call: () => ask("undrain", { body: { clientId: w.clientId } }),
  });
}

/** Asks whether an instance is to be closed. */
export function askToWindDown(row, worker) {
  open({
    title: `Close ${plain(row.namespace + "/" + row.id)}?`,
    text: [
      [name(worker), " is asked to close this instance as soon as nothing holds it, and at the deadline in any case: requests and streams that are open then are cut."],
      "What its application has not saved by then is gone. The next request for the id starts it anew, here or on another worker. A deadline shorter than one lease counts as one lease.",
    ],
    verb: "Close it", ending: "always", done: row.id + " was asked to close",
    call: (within) => windDown(row, within),
  });
}

/** Asks whether an instance that was asked to close is to stay. */
export function askToKeep(row, worker) {
  open({
    title: `Let ${plain(row.namespace + "/" + row.id)} stay?`,
    text: [[name(worker), " is told that the instance need not close any more. If it has closed, nothing happens."]],
    verb: "Let it stay", done: row.id + " may stay",
    call: () => windDown(row, null),
  });
}

const windDown = (row, within) => ask("wind_down", { body: { namespace: row.namespace, id: row.id, hostname: row.hostname, deadline: within } });

// listed returns names, those beyond a few as a number.
function listed(names) {
  const shown = names.slice(0, 3).flatMap((n, i) => [i > 0 ? ", " : "", name(n)]);
  return names.length > 3 ? [...shown, " and " + count(names.length - 3) + " more"] : shown;
}
