// Live updates, instant search, preview while typing, keyboard shortcuts. All pages work without this script.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const mount = document.documentElement.dataset.mount; // the path prefix of a site that is mounted in another application
const typing = () => document.activeElement?.matches("input:not([type=checkbox]), textarea, select");

// fetch the page again and update its [data-live] parts: see live.js
let lastRequest = 0;
async function refresh(address = location.href, whole = false) {
  const request = ++lastRequest;
  const answer = await fetch(address, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected || request !== lastRequest) return;
  updatePage(new DOMParser().parseFromString(await answer.text(), "text/html"), whole);
  updated();
}
function updated() {
  mark();
  showPicked();
  followLog();
}
document.addEventListener("live-updated", updated);

// what was kept because the reader used it is updated when they leave it
const released = () => { if (stale && stream) refreshSoon(); };
document.addEventListener("selectionchange", () => { if (getSelection().isCollapsed) released(); });
document.addEventListener("focusout", released);
document.addEventListener("toggle", released, true);
document.addEventListener("pointerout", (event) => { if (stale && !event.target.closest?.("[data-live]")?.contains(event.relatedTarget)) released(); });

// the selected row is identified by its key: rows are replaced
let chosen = null;
function mark() {
  const rows = $$("[data-row]"), place = chosen === null ? -1 : rows.findIndex((row) => rowKey(row) === chosen);
  rows.forEach((row, number) => row.classList.toggle("chosen", number === place));
  return place;
}

// rows that the reader selected, by their ids: rows are replaced. Shift selects a range
const picked = new Set();
let lastPicked = null;
function showPicked() {
  const boxes = $$("[data-pick]"), bar = $("#picked");
  for (const box of boxes) { box.hidden = false; box.checked = picked.has(box.dataset.pick); }
  const all = $("[data-pick-all]");
  if (all) { all.hidden = false; all.checked = boxes.length > 0 && boxes.every((box) => box.checked); }
  if (!bar) return;
  bar.hidden = picked.size === 0;
  $("[data-picked-count]", bar).textContent = `${picked.size} selected`;
  const compare = $("[data-compare]", bar);
  if (compare) {
    const [a, b] = [...picked].sort(); // ids begin with their time: the older one first
    compare.hidden = picked.size !== 2;
    if (!compare.hidden) compare.href = `${compare.dataset.compare}?${new URLSearchParams({ a, b })}`;
  }
  for (const field of $$("[data-picked]", bar)) field.value = [...picked].join(",") || "none";  // refused: an empty filter would match everything
}
document.addEventListener("click", (event) => {
  const box = event.target.closest?.("[data-pick]"), all = event.target.closest?.("[data-pick-all]");
  if (!box && !all) return;
  const boxes = $$("[data-pick]"), to = boxes.indexOf(box), from = event.shiftKey ? boxes.findIndex((other) => other.dataset.pick === lastPicked) : -1;
  const range = all ? boxes : from < 0 ? [box] : boxes.slice(Math.min(from, to), Math.max(from, to) + 1);
  for (const row of range) picked[(box ?? all).checked ? "add" : "delete"](row.dataset.pick);
  lastPicked = box?.dataset.pick ?? null;
  if (event.detail) (box ?? all).blur();  // clicked, not by key: a focused part is not updated
  showPicked();
});

// banner while the server is unreachable
let away, checking;
const checkSoon = () => { checking ??= setTimeout(check, 3000); };  // further errors do not postpone it
async function check() {
  clearTimeout(checking);
  checking = null;
  const answers = await fetch(mount + "/health/live", { cache: "no-store", signal: AbortSignal.timeout(5000) }).then((answer) => answer.ok, () => false);
  if (answers) {
    away?.remove();
    if (away) refresh();
    away = null;
    if (stream?.readyState === EventSource.CLOSED) { stream = null; follow(); }
    return;
  }
  if (!away) {
    away = document.createElement("p");
    away.className = "card banner away";
    away.setAttribute("role", "alert");
    away.textContent = `The server is not reachable. This page shows the state of ${new Date().toISOString().slice(11, 19)} UTC; retrying every few seconds.`;
    $("main").prepend(away);
  }
  checkSoon();
}

// event stream of the org, while the page is visible
let stream, soon;
const refreshSoon = () => { soon ??= setTimeout(() => { soon = null; refresh(); }, 600); };
function follow() {
  if (document.hidden || !$("[data-live]")) { stream?.close(); stream = null; return; }
  if (stream) return;
  stream = new EventSource(mount + "/live/events?since=" + $("main").dataset.since);
  stream.addEventListener("error", checkSoon);
  stream.addEventListener("open", () => { if (away) check(); });
  for (const kind of ["run.started", "run.ended", "schedule.created", "schedule.changed", "schedule.deleted", "worker.up", "worker.down", "freeze.on", "freeze.off", "queue.changed", "host.up", "host.down", "host.changed", "workflow.changed", "workflow.stopped", "approval.requested", "approval.decided"])
    stream.addEventListener(kind, refreshSoon);
}

// the log of a run grows, and its recorded steps change: see log.js
let tail;
function followLog() {
  const log = $("[data-follow]");
  if (!log || document.hidden) { tail?.close(); tail = null; return; }
  if (tail) return;
  if ($("[data-log]") && !log.dataset.viewed) logViewer(log);
  tail = new EventSource(log.dataset.follow);
  tail.addEventListener("log", () => log.dispatchEvent(new Event("log-grows")));
  tail.addEventListener("steps", refreshSoon);
  tail.addEventListener("end", () => {
    tail.close();
    log.removeAttribute("data-follow");
    $("[data-following]")?.remove();
    log.dispatchEvent(new Event("log-grows"));
    refresh();
  });
}

function debounce(milliseconds, action) {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => action(...args), milliseconds); };
}

// filter lists while typing; updates the URL, too
const search = debounce(150, (form) => {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", form.getAttribute("action") + (query.size ? "?" + query : ""));
  lastRequest += 1;
  const focus = document.activeElement;
  refresh(location.href, true).then(() => focus?.focus());
});

// search from every page: results below the field, chosen by arrow keys
const find = $("[data-find]"), palette = $("#palette");
let lastFind = 0;
async function showResults() {
  const request = ++lastFind;
  const answer = await fetch(`${mount}/search?part=1&q=${encodeURIComponent(find.value)}`).catch(() => null);
  if (!answer?.ok || answer.redirected || request !== lastFind || document.activeElement !== find) return;
  palette.innerHTML = await answer.text();  // our own page, escaped by the server
  openPalette(true);
  choose(0);
}
const findSoon = debounce(120, showResults);
function openPalette(open) {
  palette.hidden = !open;
  find.setAttribute("aria-expanded", String(open));
  if (!open) { lastFind += 1; find.removeAttribute("aria-activedescendant"); }
}
const place = () => $$("[role=option]", palette).findIndex((row) => row.ariaSelected === "true");
function choose(number) {
  const rows = $$("[role=option]", palette);
  if (!rows.length) return;
  rows.forEach((row, index) => { row.ariaSelected = String(index === (number + rows.length) % rows.length); });
  const row = rows[place()];
  find.setAttribute("aria-activedescendant", row.id);
  row.scrollIntoView({ block: "nearest" });
}
if (find) {
  find.addEventListener("input", findSoon);
  find.addEventListener("focus", findSoon);
  find.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); choose(place() + (event.key === "ArrowDown" ? 1 : -1)); }
    else if (event.key === "Escape") { openPalette(false); find.blur(); }
    else if (event.key === "Enter" && !palette.hidden && place() >= 0) { event.preventDefault(); $("a", $$("[role=option]", palette)[place()]).click(); }
  });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".find")) openPalette(false); });
}

const preview = debounce(250, async (form) => {
  const answer = await fetch(mount + "/schedules/preview", { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
  if (answer?.ok) $("#preview").innerHTML = await answer.text();  // our own page, escaped by the server
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.matches("[data-search]")) search(form);
  if (form?.matches("[data-editor]")) preview(form);
});
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented) return;
  for (const button of $$("button", event.target)) setTimeout(() => { button.disabled = true; });  // prevents double submission
});
document.addEventListener("click", (event) => {
  for (const open of $$("details.act[open], details.menu[open]")) if (!open.contains(event.target)) open.open = false;
});
addEventListener("pageshow", () => { for (const button of $$("button:disabled")) button.disabled = false; });

// keyboard shortcuts
let gone = 0;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { for (const open of $$("details.act[open], details.menu[open]")) open.open = false; return; }
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && find) { event.preventDefault(); find.focus(); find.select(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || typing()) return;
  const rows = $$("[data-row]");
  if (Date.now() - gone < 1200) {
    gone = 0;
    const place = $(`[data-go="${CSS.escape(event.key)}"]`);
    if (place) { event.preventDefault(); location.href = place.href; }
  } else if (event.key === "g") gone = Date.now();
  else if (event.key === "/") { event.preventDefault(); ($("[data-search] [type=search]") ?? find)?.focus(); }
  else if (event.key === "?") $("#keys")?.showModal();
  else if (event.key === "." && $("#news")) showNews();
  else if ((event.key === "j" || event.key === "k") && rows.length) {
    const place = Math.max(0, Math.min(rows.length - 1, mark() + (event.key === "j" ? 1 : -1)));
    chosen = rowKey(rows[place]);
    mark();
    rows[place].scrollIntoView({ block: "nearest" });
  } else if (event.key === "x" && mark() >= 0) $("[data-pick]", rows[mark()])?.click();
  else if (event.key === "Enter" && document.activeElement === document.body && mark() >= 0) $("a", rows[mark()])?.click();
});

const localZone = $("[data-mine]");
if (localZone) localZone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
document.addEventListener("visibilitychange", () => { follow(); followLog(); if (!document.hidden) refresh(); });
showPicked();
follow();
document.addEventListener("DOMContentLoaded", followLog); // when log.js is loaded, too
if ($("[data-again]")) setTimeout(refresh, 1500);  // a part is being computed
