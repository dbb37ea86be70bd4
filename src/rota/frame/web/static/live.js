// Updates the [data-live] parts of a page to those of a newer one, without disturbing the reader: what did not change
// stays as it is, with its focus, selected text, scroll position and open details; new rows of a list are announced.
"use strict";

// a row keeps its key while its job starts and ends; by default it is its link
const rowKey = (row) => row.getAttribute("data-row") || (row.querySelector("a")?.getAttribute("href") ?? null);
const keyOf = (node) => node.nodeType !== 1 ? null : node.id || (node.hasAttribute("data-row") ? rowKey(node) : null);
const rowsOf = (part) => [...part.querySelectorAll("[data-row]")];
const hovers = matchMedia("(hover: hover)");

let stale = false; // something was kept because the reader uses it; it is updated when they leave it
const held = new Map(); // parts whose new rows are announced, by id: the newer part

// whether the reader has focus, selected text or open details in a node. Focus and selection are read once for an
// update: each read would lay out the page again
let selected = null, focused = null;
function noteUse() {
  const selection = getSelection();
  selected = selection.rangeCount && !selection.isCollapsed ? selection.getRangeAt(0) : null;
  focused = document.activeElement === document.body ? null : document.activeElement;
}
function inUse(node) {
  if (selected?.intersectsNode(node)) return true;
  return node.nodeType === 1 && ((focused && node.contains(focused)) || node.matches("details[open]") || node.querySelector("details[open]") !== null);
}

function updatePage(page, whole = false) {
  stale = false;
  noteUse();
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh) continue;
    if (!fresh.hasAttribute("data-live")) part.replaceWith(fresh); // the log, when its run has started
    else if (part.matches("[data-drawing]")) replaceDrawing(part, fresh);
    else if (!part.isEqualNode(fresh)) updatePart(part, fresh, whole);
  }
  document.querySelector("main").dataset.since = page.querySelector("main").dataset.since;
}

// a drawing is replaced as a whole, also while it has the focus: its script draws it again
function replaceDrawing(part, fresh) {
  const link = focused?.closest("a"), box = focused?.closest(".viewport"), inside = focused && part.contains(focused);
  const again = !inside ? null : link ? `a[href="${CSS.escape(link.getAttribute("href"))}"]` : box === focused ? ".viewport" : null;
  if ((inside && !again) || selected?.intersectsNode(part) || part.querySelector("details[open]")) { stale = true; return; }
  const places = [...part.querySelectorAll(".scroll")].map((scroller) => [scroller.scrollLeft, scroller.scrollTop]);
  part.replaceWith(fresh);
  fresh.dispatchEvent(new CustomEvent("fresh", { bubbles: true }));
  if (again) fresh.querySelector(again)?.focus({ preventScroll: true });
  [...fresh.querySelectorAll(".scroll")].slice(0, places.length).forEach((scroller, number) => scroller.scrollTo(...places[number]));
}

function updatePart(part, fresh, whole) {
  for (const box of fresh.querySelectorAll("[data-pick], [data-pick-all]")) box.hidden = false;
  const old = new Map(rowsOf(part).map((row) => [rowKey(row), row])), rows = rowsOf(fresh);
  const added = rows.filter((row) => !old.has(rowKey(row))).length;
  const announces = part.hasAttribute("data-announce"), under = hovers.matches && part.matches(":hover");
  if (whole || !old.size || !(announces ? added : under && (added || rows.length < old.size))) {
    held.delete(part.id);
    morph(part, fresh);
  } else {
    for (const row of rows) {
      const shown = old.get(rowKey(row));
      if (shown && !shown.isEqualNode(row)) morph(shown, row.cloneNode(true));
    }
    if (announces) held.set(part.id, { fresh, added, all: added === rows.length, unit: part.dataset.announce });
    else stale = true;
  }
  announce();
}

function announce() {
  let button = document.querySelector("#news");
  if (!held.size) { button?.remove(); return; }
  if (!button) {
    button = document.createElement("button");
    button.id = "news";
    button.type = "button";
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", showNews);
    document.querySelector("main").prepend(button);
  }
  const [{ added, all, unit }] = held.values();
  button.textContent = `${added}${all ? " or more" : ""} new ${unit}${added === 1 ? "" : "s"}`;
}

function showNews() {
  noteUse();
  for (const [id, { fresh }] of held) {
    const part = document.getElementById(id);
    if (!part) continue;
    morph(part, fresh);
    if (part.getBoundingClientRect().top < 0) part.scrollIntoView({ block: "start" });
  }
  held.clear();
  announce();
  document.dispatchEvent(new Event("live-updated"));
}

// make a node equal to a newer one of the same kind
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== 1) {
    if (inUse(old)) stale = true;
    else old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(old, name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !kept(old, name)) old.setAttribute(name, value);
  morphChildren(old, fresh);
}

// what the reader changes: whether details are open, what is in a field
const kept = (node, name) => (name === "open" && node.matches("details")) || (["value", "checked"].includes(name) && node.matches("input:not([type=hidden])")) || (name === "class" && node.classList.contains("shown"));
const alike = (old, fresh) => old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

function morphChildren(old, fresh) {
  if (old.nodeName === "TEXTAREA") return;
  const before = [...old.childNodes];
  if (before.length === fresh.childNodes.length && [...fresh.childNodes].every((node, number) => alike(before[number], node))) {
    for (const [number, node] of [...fresh.childNodes].entries()) morph(before[number], node);
    return;
  }
  const byKey = new Map(before.map((node) => [keyOf(node), node])), wanted = [...fresh.childNodes];
  byKey.delete(null);
  const keys = new Set(wanted.map(keyOf));
  let place = old.firstChild;
  for (const node of wanted) {
    const key = keyOf(node), match = key !== null && byKey.get(key)?.nodeName === node.nodeName ? byKey.get(key) : null;
    // leave what is gone; a text between rows goes with its row
    while (place && place !== match && (keyOf(place) === null ? match && place.nodeType === 3 : !keys.has(keyOf(place)))) place = leave(place);
    if (match) {
      if (match !== place) old.insertBefore(match, place);
      else place = place.nextSibling;
      morph(match, node);
    } else if (key === null && place && alike(place, node)) {
      const same = place;
      place = place.nextSibling;
      morph(same, node);
    } else old.insertBefore(node, place);
  }
  while (place) place = leave(place);
}

// remove a node unless the reader uses it; return the one after it
function leave(node) {
  const following = node.nextSibling;
  if (inUse(node)) stale = true;
  else node.remove();
  return following;
}
