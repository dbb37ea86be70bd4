// Live pages, instant search, a preview while typing, and keys. Everything here is also there without it.
"use strict";

const $ = (what, where = document) => where.querySelector(what);
const $$ = (what, where = document) => [...where.querySelectorAll(what)];
const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);

// what changed is fetched as a page, and its parts that live are put in place of the old ones
let asked = 0;
async function refresh(address = location.href) {
  const mine = ++asked;
  const answer = await fetch(address, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected || mine !== asked) return;
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

// a part in which text is selected stays as it is until the selection is gone
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

// the marked row is known by its link: rows come and go
let chosen = null;
const linkOf = (row) => $("a", row)?.href ?? null;
function mark() {
  const rows = $$("[data-row]"), place = chosen === null ? -1 : rows.findIndex((row) => linkOf(row) === chosen);
  rows.forEach((row, number) => row.classList.toggle("chosen", number === place));
  return place;
}

// a banner while the server does not answer
let away, checking;
const checkSoon = () => { checking ??= setTimeout(check, 3000); };  // an error that follows does not put it off
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
    away.textContent = `The server does not answer. This page shows the state before ${new Date().toISOString().slice(11, 19)} UTC; the server is asked again every few seconds.`;
    $("main").prepend(away);
  }
  checkSoon();
}

// the change stream of the org, while the page is visible
let stream, soon;
function follow() {
  if (document.hidden || !$("[data-live]")) { stream?.close(); stream = null; return; }
  if (stream) return;
  stream = new EventSource("/live/events?since=" + $("main").dataset.since);
  stream.addEventListener("error", checkSoon);
  stream.addEventListener("open", () => { if (away) check(); });
  const stir = () => { soon ??= setTimeout(() => { soon = null; refresh(); }, 600); };
  for (const kind of ["run.started", "run.ended", "schedule.created", "schedule.changed", "schedule.deleted", "worker.up", "worker.down", "freeze.on", "freeze.off", "queue.changed", "host.up", "host.down", "host.changed", "workflow.changed", "workflow.stopped"])
    stream.addEventListener(kind, stir);
}

// the log of a run, as it is written
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
    sift();
    if (low) log.scrollTop = log.scrollHeight;
  });
  tail.addEventListener("end", () => { tail.close(); log.removeAttribute("data-follow"); $("[data-following]")?.remove(); refresh(); });
}
function sift() {
  const wanted = ($("[data-log-search]")?.value ?? "").toLowerCase();
  for (const row of $$("#log p")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}

function wait(span, step) {
  let timer;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => step(...given), span); };
}

// lists that follow what is typed; the address follows, too
const search = wait(150, (form) => {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", form.getAttribute("action") + (query.size ? "?" + query : ""));
  asked += 1;
  const focus = document.activeElement;
  refresh().then(() => focus?.focus());
});

const preview = wait(250, async (form) => {
  const answer = await fetch("/schedules/preview", { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
  if (answer?.ok) $("#preview").innerHTML = await answer.text();  // our own page, escaped by the server
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.matches("[data-search]")) search(form);
  if (form?.matches("[data-editor]")) preview(form);
  if (event.target.matches("[data-log-search]")) sift();
});
document.addEventListener("submit", (event) => {
  for (const button of $$("button", event.target)) setTimeout(() => { button.disabled = true; });  // once is enough
});
document.addEventListener("click", (event) => {
  for (const open of $$("details.act[open], details.menu[open]")) if (!open.contains(event.target)) open.open = false;
});
addEventListener("pageshow", () => { for (const button of $$("button:disabled")) button.disabled = false; });

// keys
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

const mine = $("[data-mine]");
if (mine) mine.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const log = $("#log");
if (log) log.scrollTop = log.scrollHeight;
document.addEventListener("visibilitychange", () => { follow(); followLog(); if (!document.hidden) refresh(); });
follow();
followLog();
