// Making and changing elements. They are made of texts, never of markup: what
// workers call themselves is shown, and not believed.

const svg = "http://www.w3.org/2000/svg";

/** Makes an element. Of props, "on" has listeners; the others are attributes. */
export function make(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Makes an element of a drawing. */
export function draw(tag, props = {}, ...children) {
  return fill(document.createElementNS(svg, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (typeof value === "boolean") {
      node.toggleAttribute(name, value);
    } else if (value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.flat().filter((child) => child !== "" && child !== undefined && child !== null));
  return node;
}

/** Returns the element with that id. */
export const byId = (id) => document.getElementById(id);

/**
 * Returns a text in which nothing hides or turns the text around it: what controls
 * how text is shown is replaced, as in the tables of the command line.
 */
export function plain(text) {
  return String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, "\ufffd");
}

/** Makes an element for a name that others have chosen. */
export function name(text, props = {}) {
  return make("bdi", { class: "name", ...props }, plain(text));
}

/** Sets the text of an element, if it is another one: selections and readers are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets the children of an element, if they read or link differently. */
export function setChildren(node, ...children) {
  const next = make("div", {}, ...children);
  if (node.childNodes.length === next.childNodes.length &&
    [...next.childNodes].every((child, i) => child.isEqualNode(node.childNodes[i]))) return;
  keepingFocus(node, () => node.replaceChildren(...next.childNodes));
}

const lists = new WeakMap();

/**
 * Makes the children of parent those of items, in their order. An element stays
 * the same as long as its item's key does: focus and selection stay, too. make
 * returns {node, update}.
 */
export function list(parent, items, keyOf, makeRow) {
  const before = lists.get(parent) ?? new Map();
  const now = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    const row = before.get(key) ?? makeRow(item);
    row.update?.(item);
    now.set(key, row);
  }
  lists.set(parent, now);
  keepingFocus(parent, () => {
    for (const [key, row] of before) if (!now.has(key)) row.node.remove();
    let at = parent.firstChild;
    for (const { node } of now.values()) {
      if (node === at) at = at.nextSibling;
      else parent.insertBefore(node, at);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  });
}

/** Hides an element or shows it. Focus that would be lost goes to another one. */
export function hide(node, off, instead) {
  const lost = off && node.contains(document.activeElement);
  node.hidden = off;
  if (lost) instead.focus({ preventScroll: true });
}

// keepingFocus gives the focus back to what had it, or if that is gone to what
// is there, so that who works by keyboard is not sent to the top of the page.
function keepingFocus(parent, change) {
  const had = parent.contains(document.activeElement) ? document.activeElement : null;
  change();
  if (!had || document.activeElement === had) return;
  if (had.isConnected) had.focus({ preventScroll: true });
  else parent.closest("[tabindex]")?.focus({ preventScroll: true });
}
