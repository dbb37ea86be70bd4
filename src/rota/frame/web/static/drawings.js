// Zoom of drawings and of the timeline, the arrows of the box under the pointer, arrow keys in grids. Without this script
// drawings scroll at their own size, and the timeline zooms by its links.
"use strict";

const scales = new Map();  // of drawings, by the id of their part of the page: parts are replaced
const SCALE_MIN = 0.25, SCALE_MAX = 3, SCALE_STEP = 1.25;

function showZoom(part) {
  const box = $(".viewport", part), drawing = $("svg.network", part);
  if (!drawing) return;
  const { width, height } = drawing.viewBox.baseVal;
  const first = !scales.has(part.id);
  if (first) scales.set(part.id, Math.min(1, Math.max(0.8, (box.clientWidth - 2) / width)));
  const scale = scales.get(part.id);
  drawing.style.width = `${width * scale}px`;
  drawing.style.height = `${height * scale}px`;
  $(".tools", part).hidden = false;
  const current = first && $("[aria-current]", drawing)?.getBoundingClientRect(), around = box.getBoundingClientRect();
  if (current) box.scrollTo(current.left - around.left - box.clientWidth / 2 + current.width / 2, current.top - around.top - box.clientHeight / 2);
}

// zoom so that the point under the pointer stays there
function zoomTo(part, scale, x, y) {
  const box = $(".viewport", part), before = scales.get(part.id), after = Math.min(SCALE_MAX, Math.max(SCALE_MIN, scale));
  const [left, top] = [(box.scrollLeft + x) * after / before - x, (box.scrollTop + y) * after / before - y];
  scales.set(part.id, after);
  showZoom(part);
  box.scrollTo(left, top);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-zoom]"), part = button?.closest("[data-drawing]");
  if (!part) return;
  const box = $(".viewport", part), { width, height } = $("svg.network", part).viewBox.baseVal, how = button.dataset.zoom;
  const fitting = Math.min(box.clientWidth / width, box.clientHeight / height);
  const scale = how === "fit" ? fitting : how === "0" ? 1 : scales.get(part.id) * SCALE_STEP ** Number(how);
  zoomTo(part, scale, box.clientWidth / 2, box.clientHeight / 2);
});
document.addEventListener("wheel", (event) => {
  const box = event.target.closest(".viewport");
  if (!box || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const part = box.closest("[data-drawing]"), place = box.getBoundingClientRect();
  zoomTo(part, scales.get(part.id) * Math.exp(-event.deltaY / 400), event.clientX - place.left, event.clientY - place.top);
}, { passive: false });
document.addEventListener("keydown", (event) => {
  const part = event.target.closest?.(".viewport")?.closest("[data-drawing]"), way = { "+": 1, "=": 1, "-": -1, 0: 0 }[event.key];
  if (!part || way === undefined || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  $(`[data-zoom="${way}"]`, part).click();
});

// the mouse moves a drawing; a click that ends a move opens nothing
let grabbed = null, moved = false;  // moved: until the click that ends it
document.addEventListener("pointerdown", (event) => {
  const box = event.pointerType === "mouse" && event.button === 0 ? event.target.closest(".viewport") : null;
  moved = false;
  if (box) grabbed = { box, x: event.clientX, y: event.clientY, left: box.scrollLeft, top: box.scrollTop };
});
document.addEventListener("pointermove", (event) => {
  if (!grabbed) return;
  const [x, y] = [event.clientX - grabbed.x, event.clientY - grabbed.y];
  moved ||= Math.abs(x) + Math.abs(y) > 4;
  if (moved) grabbed.box.scrollTo(grabbed.left - x, grabbed.top - y);
});
addEventListener("pointerup", () => { grabbed = null; });
document.addEventListener("click", (event) => { if (moved && event.target.closest(".viewport, [data-gantt]")) event.preventDefault(); moved = false; }, true);
document.addEventListener("dragstart", (event) => { if (event.target.closest(".viewport, .chart.lane")) event.preventDefault(); });

// a box under the pointer or with the focus lights up its arrows and their other ends
function light(node) {
  const drawing = node.closest("svg.network"), number = node.dataset.n, near = new Set([number]);
  for (const arrow of $$("[data-e]", drawing)) {
    const ends = arrow.dataset.e.split(" ");
    arrow.classList.toggle("lit", ends.includes(number));
    if (ends.includes(number)) ends.forEach((end) => near.add(end));
  }
  for (const other of $$("[data-n]", drawing)) other.classList.toggle("near", near.has(other.dataset.n));
  drawing.classList.add("lighting");
}
const unlight = () => $$("svg.lighting").forEach((drawing) => drawing.classList.remove("lighting"));
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, (event) => {
  const node = event.target.closest?.("svg.network [data-n]") ?? document.activeElement.closest("svg.network [data-n]");
  if (node) light(node); else unlight();
});
document.addEventListener("focusout", unlight);

// a grid is one stop of the Tab key; arrow keys go from cell to cell
const cellsOf = (table) => $$("tbody tr", table).map((row) => $$("td", row).map((cell) => $("a", cell)));
function tabStop(table, cell) {
  for (const link of $$("td a", table)) link.tabIndex = link === cell ? 0 : -1;
}
const showGrids = (root) => { for (const table of $$(".grid", root)) tabStop(table, $$("tbody tr:first-child td a", table).at(-1)); };
document.addEventListener("focusin", (event) => { const cell = event.target.closest(".grid td a"); if (cell) tabStop(cell.closest(".grid"), cell); });
document.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".grid td a"), step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!cell || !step) return;
  event.preventDefault();
  const cells = cellsOf(cell.closest(".grid")), last = cells[0].length;
  let row = cells.findIndex((links) => links.includes(cell)), column = cells[row].indexOf(cell);
  do { row += step[0]; column += step[1]; } while (row in cells && column >= 0 && column < last && !cells[row][column]);
  cells[row]?.[column]?.focus();
});
showGrids(document);

document.addEventListener("fresh", (event) => {
  showGrids(event.target);
  if (event.target.matches("[data-drawing]")) showZoom(event.target);
});
$$("[data-drawing]").forEach(showZoom);

// the timeline: dragging over the rows enlarges a part, Ctrl and the wheel zoom around the pointer
const RANGE_MIN = 1000, RANGE_MAX = 31 * 86400e3, WHEEL_PAUSE = 180;
const rangeOf = (chart) => [Number(chart.dataset.from), Number(chart.dataset.to)];
const plotOf = (chart) => $(".timeaxis", chart).getBoundingClientRect();
function showRange(from, to) {
  const length = Math.min(RANGE_MAX, Math.max(RANGE_MIN, to - from)), start = (from + to - length) / 2;
  const query = new URLSearchParams(location.search);
  for (const name of ["span", "day"]) query.delete(name);
  query.set("from", new Date(start).toISOString());
  query.set("to", new Date(start + length).toISOString());
  history.replaceState(null, "", `?${query}`);
  refresh();
}
const showRangeSoon = debounce(WHEEL_PAUSE, showRange);
document.addEventListener("wheel", (event) => {
  const chart = event.target.closest("[data-gantt]");
  if (!chart || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const [from, to] = rangeOf(chart), plot = plotOf(chart);
  const share = Math.min(1, Math.max(0, (event.clientX - plot.left) / plot.width));
  const length = Math.min(RANGE_MAX, Math.max(RANGE_MIN, (to - from) * Math.exp(event.deltaY / 300)));
  const start = from + share * (to - from - length);
  for (const row of $$(".chart.lane", chart)) {  // at once; the server draws it anew when the wheel rests
    const factor = new DOMMatrix(getComputedStyle(row).transform).a * (to - from) / length;
    row.style.transformOrigin = `${share * 100}% 0`;
    row.style.transform = `scaleX(${factor})`;
  }
  [chart.dataset.from, chart.dataset.to] = [start, start + length];
  showRangeSoon(start, start + length);
}, { passive: false });
let drag = null;
document.addEventListener("pointerdown", (event) => {
  const chart = event.pointerType === "mouse" && event.button === 0 ? event.target.closest(".chart.lane")?.closest("[data-gantt]") : null;
  drag = chart ? { chart, x: event.clientX, mark: null } : null;
});
document.addEventListener("pointermove", (event) => {
  if (!drag || Math.abs(event.clientX - drag.x) < 5) return;
  const plot = plotOf(drag.chart), around = drag.chart.getBoundingClientRect();
  drag.chart.classList.add("narrowing");
  if (!drag.mark) drag.chart.append(drag.mark = Object.assign(document.createElement("div"), { className: "picked-range" }));
  const ends = [drag.x, event.clientX].map((x) => Math.min(plot.right, Math.max(plot.left, x))).sort((a, b) => a - b);
  drag.ends = ends.map((x) => (x - plot.left) / plot.width);
  Object.assign(drag.mark.style, { left: `${ends[0] - around.left}px`, width: `${ends[1] - ends[0]}px`, top: `${plot.top - around.top}px`, bottom: "0" });
});
addEventListener("pointerup", () => {
  const done = drag;
  drag = null;
  if (!done?.mark) return;
  done.mark.remove();
  done.chart.classList.remove("narrowing");
  moved = true;  // the click that follows opens nothing
  const [from, to] = rangeOf(done.chart);
  showRange(from + done.ends[0] * (to - from), from + done.ends[1] * (to - from));
});
