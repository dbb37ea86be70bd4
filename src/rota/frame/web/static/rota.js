// Live updates, instant search, preview while typing, keyboard shortcuts. All pages work without this script.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);

// fetch the page again and replace its [data-live] parts
let lastRequest = 0;
async function refresh(address = location.href) {
  const request = ++lastRequest;
  const answer = await fetch(address, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected || request !== lastRequest) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of $$("[data-live]")) {
    const fresh = page.getElementById(part.id);
    const busy = part.contains(document.activeElement) && document.activeElement !== document.body;
    if (fresh && !busy && !selected(part) && !$("details[open]", part)) part.replaceWith(document.adoptNode(fresh));
  }
  $("main").dataset.since = $("main", page).dataset.since;
  mark();
  followLog();
}

// a part with selected text is not replaced until the selection is cleared
function selected(part) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(part, true);
}
let selecting = false;
document.addEventListener("selectionchange", () => {
  const before = selecting;
  selecting = !getSelection().isCollapsed;
  if (before && !selecting && stream) refresh();
});

// the selected row is identified by its link: rows are replaced
let chosen = null;
const linkOf = (row) => $("a", row)?.href ?? null;
function mark() {
  const rows = $$("[data-row]"), place = chosen === null ? -1 : rows.findIndex((row) => linkOf(row) === chosen);
  rows.forEach((row, number) => row.classList.toggle("chosen", number === place));
  return place;
}

// banner while the server is unreachable
let away, checking;
const checkSoon = () => { checking ??= setTimeout(check, 3000); };  // further errors do not postpone it
async function check() {
  clearTimeout(checking);
  checking = null;
  const answers = await fetch("/health/live", { cache: "no-store", signal: AbortSignal.timeout(5000) }).then((answer) => answer.ok, () => false);
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
function follow() {
  if (document.hidden || !$("[data-live]")) { stream?.close(); stream = null; return; }
  if (stream) return;
  stream = new EventSource("/live/events?since=" + $("main").dataset.since);
  stream.addEventListener("error", checkSoon);
  stream.addEventListener("open", () => { if (away) check(); });
  const refreshSoon = () => { soon ??= setTimeout(() => { soon = null; refresh(); }, 600); };
  for (const kind of ["run.started", "run.ended", "schedule.created", "schedule.changed", "schedule.deleted", "worker.up", "worker.down", "freeze.on", "freeze.off", "queue.changed", "host.up", "host.down", "host.changed", "workflow.changed", "workflow.stopped"])
    stream.addEventListener(kind, refreshSoon);
}

// live log of a run
let tail;
function followLog() {
  const log = $("[data-follow]");
  if (!log || document.hidden) { tail?.close(); tail = null; return; }
  if (tail) return;
  const known = new Set();
  tail = new EventSource(log.dataset.follow);
  tail.addEventListener("log", (event) => {
    const line = JSON.parse(event.data);
    if (known.has(line.id)) return;
    known.add(line.id);
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const row = document.createElement("p");
    const time = document.createElement("time");
    time.textContent = line.at.slice(11, 19);
    row.className = line.stream;
    row.append(time, " " + line.text);
    log.append(row);
    filterLog();
    if (low) log.scrollTop = log.scrollHeight;
  });
  tail.addEventListener("end", () => { tail.close(); log.removeAttribute("data-follow"); $("[data-following]")?.remove(); refresh(); });
}
function filterLog() {
  const wanted = ($("[data-log-search]")?.value ?? "").toLowerCase();
  for (const row of $$("#log p")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
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
  refresh().then(() => focus?.focus());
});

const preview = debounce(250, async (form) => {
  const answer = await fetch("/schedules/preview", { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
  if (answer?.ok) $("#preview").innerHTML = await answer.text();  // our own page, escaped by the server
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.matches("[data-search]")) search(form);
  if (form?.matches("[data-editor]")) preview(form);
  if (event.target.matches("[data-log-search]")) filterLog();
});
document.addEventListener("submit", (event) => {
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
  if (event.ctrlKey || event.metaKey || event.altKey || typing()) return;
  const rows = $$("[data-row]");
  if (Date.now() - gone < 1200) {
    gone = 0;
    const place = $(`[data-go="${CSS.escape(event.key)}"]`);
    if (place) { event.preventDefault(); location.href = place.href; }
  } else if (event.key === "g") gone = Date.now();
  else if (event.key === "/") { event.preventDefault(); ($("[data-search] [type=search]") ?? $("[data-find]"))?.focus(); }
  else if (event.key === "?") $("#keys")?.showModal();
  else if ((event.key === "j" || event.key === "k") && rows.length) {
    const place = Math.max(0, Math.min(rows.length - 1, mark() + (event.key === "j" ? 1 : -1)));
    chosen = linkOf(rows[place]);
    mark();
    rows[place].scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && document.activeElement === document.body && mark() >= 0) $("a", rows[mark()])?.click();
});

const localZone = $("[data-mine]");
if (localZone) localZone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const log = $("#log");
if (log) log.scrollTop = log.scrollHeight;
document.addEventListener("visibilitychange", () => { follow(); followLog(); if (!document.hidden) refresh(); });
follow();
followLog();
