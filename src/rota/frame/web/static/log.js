// Log viewer: shows a log of any length through a window of parts that the server renders. Places count the lines that
// are listed, from 0; numbers count all lines of the log, from 1. Without this script the log has pages.
"use strict";

const PART = 200, WINDOW = 1000; // lines: read at once, and kept in the page
const GAP_MAX = 8e6; // pixels of the lines above or below the window: browsers limit the height of elements

function logViewer(box) {
  box.dataset.viewed = "true";
  const form = $("[data-log-form]"), source = box.dataset.log, empty = $("[data-log-empty]");
  const gaps = [0, 1].map(() => document.createElement("div"));
  let first, total, last, places = [], match = -1, matches = 0, busy = null, follows = Boolean(box.dataset.follow);
  const rows = () => box.querySelectorAll("p");
  const height = () => { const shown = rows(); return shown.length ? (shown[shown.length - 1].getBoundingClientRect().bottom - shown[0].getBoundingClientRect().top) / shown.length : 20; };
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

  function fields(more = {}) {
    const filled = [...new FormData(form)].filter(([, value]) => value);
    return new URLSearchParams([...filled, ...Object.entries(more)]);
  }
  async function read(more) {
    const answer = await fetch(`${source}/lines?${fields(more)}`).catch(() => null);
    if (!answer?.ok || answer.redirected) return null;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html"), part = $(".chunk", page);
    return { start: Number(part.dataset.start), total: Number(part.dataset.total), lines: [...part.children].map((line) => document.adoptNode(line)) };
  }
  function count(part) { total = part.total; empty.hidden = total > 0; $("[data-log-pages]")?.remove(); }
  function resize() {
    const each = height();
    gaps[0].style.height = `${Math.min(GAP_MAX, first * each)}px`;
    gaps[1].style.height = `${Math.min(GAP_MAX, (total - last) * each)}px`;
  }
  // change the lines while one that stays keeps its place on the screen
  function keeping(stays, change) {
    const before = stays?.getBoundingClientRect().top;
    change();
    resize();
    if (stays?.isConnected) box.scrollTop += stays.getBoundingClientRect().top - before;
  }
  function replace(part) {
    count(part);
    for (const line of rows()) line.remove();
    gaps[0].after(...part.lines);
    first = part.start;
    last = first + part.lines.length;
    resize();
  }
  function append(part) {
    count(part);
    const shown = rows();
    keeping(shown[shown.length - 1], () => {
      gaps[1].before(...part.lines);
      last += part.lines.length;
      const surplus = Math.max(0, last - first - WINDOW);
      for (const line of [...rows()].slice(0, surplus)) line.remove();
      first += surplus;
    });
  }
  function prepend(part) {
    count(part);
    const wanted = part.lines.slice(0, first - part.start);
    keeping(rows()[0], () => {
      gaps[0].after(...wanted);
      first -= wanted.length;
      const surplus = Math.max(0, last - first - WINDOW);
      for (const line of [...rows()].slice(last - first - surplus)) line.remove();
      last -= surplus;
    });
  }
  // one change at a time; the newest request that waits is done next
  let waiting = null;
  async function alone(action) {
    if (busy) { waiting = action; return; }
    busy = action;
    try { await action(); } finally { busy = null; }
    const following = waiting;
    waiting = null;
    if (following) await alone(following); else scrolled();
  }
  const scrollTo = (row, where) => { box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - where * (box.clientHeight - 40); };
  async function showPlace(place, where, mark) {
    if (place < first || place >= last) {
      const part = await read({ from: Math.max(0, place - PART / 2) });
      if (!part) return;
      replace(part);
    }
    const row = rows()[Math.min(place, last - 1) - first];
    if (!row) return;
    if (mark) highlight(row);
    scrollTo(row, where);
  }
  async function showNumber(number) {
    let row = box.querySelector(`#L${number}`);
    if (!row) {
      const part = await read({ line: number });
      if (!part) return;
      replace(part);
      row = box.querySelector(`#L${number}`) ?? [...rows()].find((line) => Number(line.id.slice(1)) >= number);
    }
    if (!row) return;
    highlight(row);
    scrollTo(row, 0.3);
  }
  function highlight(row) {
    for (const other of box.querySelectorAll(".shown")) other.classList.remove("shown");
    row.classList.add("shown");
  }
  // read what has been scrolled to: the next part, or in a gap the part there
  let drawn = false;
  function scrolled() {
    if (busy || drawn) return;
    drawn = true;
    requestAnimationFrame(() => { drawn = false; if (!busy) extend(); });
  }
  function extend() {
    const above = gaps[0].offsetHeight, below = box.scrollHeight - gaps[1].offsetHeight, low = box.scrollTop + box.clientHeight, edge = 1500;
    if (first > 0 && low < above) alone(() => showPlace(Math.round(box.scrollTop / above * first), 0));
    else if (last < total && box.scrollTop > below) alone(() => showPlace(Math.min(total - 1, last + Math.round((box.scrollTop - below) / gaps[1].offsetHeight * (total - last))), 0));
    else if (first > 0 && box.scrollTop < above + edge) alone(async () => { const part = await read({ from: Math.max(0, first - PART) }); if (part) prepend(part); });
    else if (last < total && low > below - edge) alone(async () => { const part = await read({ from: last }); if (part?.lines.length) append(part); else if (part) { count(part); last = Math.min(last, total); resize(); } });
  }

  // the same lines again, after a change of the filter or the search
  async function reload() {
    const top = box.getBoundingClientRect().top, seen = [...rows()].find((line) => line.getBoundingClientRect().bottom > top);
    const part = await read(follows ? { from: Math.max(0, total - PART) } : seen ? { line: Number(seen.id.slice(1)) } : {});
    if (!part) return;
    if (follows && part.start + part.lines.length < part.total) { replace(part); await showPlace(part.total - 1, 1); }
    else replace(part);
    if (follows) box.scrollTop = box.scrollHeight;
    else if (seen) { const again = [...rows()].find((line) => Number(line.id.slice(1)) >= Number(seen.id.slice(1))); if (again) scrollTo(again, 0); }
  }
  async function findMatches() {
    const text = new FormData(form).get("q");
    match = -1;
    places = [];
    matches = 0;
    if (text) {
      const answer = await fetch(`${source}/matches?${fields()}`).catch(() => null);
      if (answer?.ok) ({ total: matches, places } = await answer.json());
    }
    showCount();
  }
  function showCount() {
    const text = new FormData(form).get("q");
    $("[data-log-steps]", form).hidden = !text;
    $("[data-log-count]", form).textContent = !text ? "" : match < 0 ? `${matches.toLocaleString("en")} ${matches === 1 ? "line" : "lines"}` : `${(match + 1).toLocaleString("en")} of ${matches.toLocaleString("en")}`;
    for (const step of $$("[data-log-step]", form)) { step.href = "#logbook"; step.ariaDisabled = String(!places.length); }
  }
  function step(by) {
    if (!places.length) return;
    setFollow(false);
    const shown = [...rows()].findIndex((line) => line.classList.contains("shown"));
    if (match < 0) {
      const from = shown < 0 ? first : first + shown;
      match = by > 0 ? places.findIndex((place) => place >= from) : places.findLastIndex((place) => place <= from);
      if (match < 0) match = by > 0 ? 0 : places.length - 1;
    } else match = (match + by + places.length) % places.length;
    showCount();
    alone(() => showPlace(places[match], 0.4, true));
  }
  const change = debounce(200, () => alone(async () => {
    await findMatches();
    await reload();
    history.replaceState(null, "", "?" + fields());
    if (places.length && !follows) step(1);
  }));

  // follow: the end stays in view until the reader scrolls up
  function setFollow(on) {
    const button = $("[data-log-follow]", form);
    follows = on && !button.hidden;
    button.setAttribute("aria-pressed", String(follows));
    if (follows) alone(() => showPlace(total - 1, 1)).then(() => { box.scrollTop = box.scrollHeight; });
  }
  const grow = () => alone(async () => {
    const end = last === total, part = await read({ from: end ? last : total });
    if (!part) return;
    if (end && part.start === last && part.lines.length) append(part);
    else count(part);
    resize();
    if (follows) { if (last < total) await showPlace(total - 1, 1); box.scrollTop = box.scrollHeight; }
  });

  const here = $(".chunk", box);
  first = Number(here.dataset.start);
  total = Number(here.dataset.total);
  last = first + here.children.length;
  here.before(gaps[0]);
  here.replaceWith(...here.childNodes);
  box.append(gaps[1]);
  $("[data-log-submit]", form).hidden = true;
  $("[data-log-pages]")?.remove();
  for (const name of ["[data-log-wrap]", ...(follows ? ["[data-log-follow]"] : [])]) $(name, form).hidden = false;
  resize();
  if (follows) $("[data-log-follow]", form).setAttribute("aria-pressed", "true");
  const hash = /^#L(\d+)$/.exec(location.hash);
  const start = hash ? () => showNumber(Number(hash[1])) : box.dataset.shown ? () => showPlace(Number(box.dataset.shown), 0.3, true) : async () => { box.scrollTop = box.scrollHeight; };
  if (hash || box.dataset.shown) setFollow(false);
  if (form.elements.q.value) findMatches();
  alone(start);

  box.addEventListener("scroll", scrolled, { passive: true });
  for (const name of ["wheel", "touchmove", "keydown", "pointerdown"])
    box.addEventListener(name, () => setTimeout(() => { if (follows && !atEnd()) setFollow(false); }, 100), { passive: true });
  form.addEventListener("submit", (event) => { event.preventDefault(); step(1); });
  form.addEventListener("input", (event) => { if (event.target.name) change(); });
  form.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.shiftKey && event.target.name === "q") { event.preventDefault(); step(-1); } });
  form.addEventListener("click", (event) => {
    const button = event.target.closest("[data-log-step], [data-log-follow], [data-log-wrap]");
    if (!button) return;
    event.preventDefault();
    if (button.matches("[data-log-step]")) step(Number(button.dataset.logStep));
    else if (button.matches("[data-log-follow]")) setFollow(!follows);
    else {
      button.setAttribute("aria-pressed", String(!box.classList.toggle("whole")));
      resize();
    }
  });
  box.addEventListener("click", (event) => {
    const number = event.target.closest(".number");
    if (!number || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    setFollow(false);
    history.replaceState(null, "", number.href);
    highlight(number.parentElement);
  });
  addEventListener("hashchange", () => { const wanted = /^#L(\d+)$/.exec(location.hash); if (wanted) alone(() => showNumber(Number(wanted[1]))); });
  let soon = null;
  box.addEventListener("log-grows", () => { soon ??= setTimeout(() => { soon = null; grow(); }, 150); });
}

if ($("[data-log]")) logViewer($("[data-log]"));
