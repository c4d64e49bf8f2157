/**
 * Line and bar charts by uPlot (vendored), in the page's colours, that follow their box's width.
 *
 * A chart is described once (`{label, unit, series: [{name, colour, ...}]}`) and given columns of
 * numbers as they change. For those who do not see it, it has a sentence as its label and its last
 * rows as a table.
 */

import { fill, h, setText } from "./dom.js";
import { number } from "./format.js";
import { colour, onChange } from "./theme.js";

const TABLE_ROWS = 30;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4]];

/**
 * A chart element with `.set([xs, ...ys])`.
 *
 * @param {object} what `label`: what is drawn; `unit`; `x`: name of the x axis; `show`: how a value
 *   is written; `height` in px; `pointed` hears at which row the pointer is; `range`: [low, high] of y, null for as the data is; `band`: two
 *   series numbers between which is filled; `series`: `{name, colour: "--c1", bars, dots, quiet}`
 * @param {AbortSignal} signal ends it
 */
export function chart(what, signal) {
  const canvas = h("div.chart-box");
  const says = h("p.visually-hidden");
  const legend = h("div.legend", { "aria-hidden": "true" });
  const body = h("div");
  const table = h("details.chart-table", {}, h("summary", {}, "As a table"), body);
  const element = h(
    "figure.chart",
    { role: "group", "aria-label": what.label },
    says,
    legend,
    canvas,
    table,
  );
  const state = { plot: null, data: null, what, canvas, legend, seen: false };

  const draw = () => {
    if (!state.data || !state.seen || !canvas.clientWidth) return;
    if (state.plot) state.plot.setData(state.data);
    else state.plot = build(state);
    showValues(state, state.data[0].length - 1);
  };
  const rebuild = () => {
    state.plot?.destroy();
    state.plot = null;
    draw();
  };
  const resized = new ResizeObserver(() => {
    if (state.plot && canvas.clientWidth) {
      state.plot.setSize({ width: canvas.clientWidth, height: what.height ?? 180 });
    } else draw();
  });
  const visible = new IntersectionObserver(
    (entries) => {
      state.seen ||= entries.some((entry) => entry.isIntersecting);
      draw();
    },
    { rootMargin: "200px" },
  );
  resized.observe(canvas);
  visible.observe(element);
  onChange(rebuild, signal);
  signal.addEventListener("abort", () => {
    resized.disconnect();
    visible.disconnect();
    state.plot?.destroy();
  });
  table.addEventListener("toggle", () => table.open && tabulate(state, body));
  canvas.style.setProperty("--chart-height", `${what.height ?? 180}px`);

  element.set = (data) => {
    state.data = data;
    setText(says, sentence(state));
    element.classList.toggle("empty", !data[0].length);
    draw();
    if (table.open) tabulate(state, body);
  };
  return element;
}

function build(state) {
  const { what, canvas } = state;
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--muted"), grid, ticks: { show: false }, font: "11px system-ui" };
  const options = {
    width: canvas.clientWidth,
    height: what.height ?? 180,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 } },
    scales: {
      x: { time: what.time ?? false, ...(what.xRange ? { range: what.xRange } : {}) },
      y: { range: (_, low, high) => rangeOf(what.range, low, high) },
    },
    axes: [
      { ...axis, size: 24, gap: 4, space: 46 },
      {
        ...axis,
        size: 46,
        gap: 4,
        space: 26,
        values: (_, splits) => splits.map((one) => (what.axis ?? number)(one)),
      },
    ],
    series: [{}, ...what.series.map((one, index) => seriesOf(one, index))],
    bands: what.band
      ? [{ series: what.band, fill: fade(colour(what.series[what.band[0] - 1].colour)) }]
      : [],
    hooks: {
      setCursor: [(plot) => showValues(state, plot.cursor.idx ?? state.data[0].length - 1)],
      draw: what.marks ? [(plot) => drawMarks(plot, what.marks())] : [],
    },
  };
  return new window.uPlot(options, state.data, canvas);
}

function seriesOf(one, index) {
  const stroke = colour(one.colour);
  if (one.bars) {
    return {
      stroke,
      fill: fade(stroke, 0.55),
      width: 1,
      points: { show: false },
      paths: window.uPlot.paths.bars({ size: [0.7, 40] }),
    };
  }
  return {
    stroke: one.quiet ? "transparent" : stroke,
    width: one.quiet ? 0 : (one.width ?? 1.75),
    dash: one.dash === undefined ? DASHES[index % DASHES.length] : one.dash,
    spanGaps: true,
    points: { show: one.dots ?? false, size: 6, fill: stroke, stroke },
    ...(one.dots && one.line === false ? { paths: () => null } : {}),
    ...(one.step ? { paths: window.uPlot.paths.stepped({ align: 1 }) } : {}),
  };
}

function rangeOf(wanted, low, high) {
  const [from, to] = wanted ?? [null, null];
  let bottom = from ?? low ?? 0;
  let top = to ?? high ?? 1;
  if (!Number.isFinite(bottom) || !Number.isFinite(top)) return [0, 1];
  if (top <= bottom) [bottom, top] = [bottom - (from === null ? 0.5 : 0), bottom + 0.5];
  const room = 0.06 * (top - bottom);
  return [from === null ? bottom - room : bottom, to === null ? top + room : top];
}

/** The same colour, mostly transparent. */
function fade(value, alpha = 0.16) {
  const hex = /^#([0-9a-f]{6})$/i.exec(value);
  if (!hex) return value;
  const part = (at) => Number.parseInt(hex[1].slice(at, at + 2), 16);
  return `rgba(${part(0)}, ${part(2)}, ${part(4)}, ${alpha})`;
}

/** Lines across at given y values: `{at, colour, text}`. */
function drawMarks(plot, marks) {
  const { ctx } = plot;
  const { left, width } = plot.bbox;
  ctx.save();
  for (const mark of marks) {
    if (mark.at === null || mark.at === undefined) continue;
    const y = Math.round(plot.valToPos(mark.at, "y", true));
    ctx.strokeStyle = colour(mark.colour ?? "--muted");
    ctx.setLineDash([5, 4]);
    ctx.beginPath();
    ctx.moveTo(left, y);
    ctx.lineTo(left + width, y);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = colour(mark.colour ?? "--muted");
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "right";
    ctx.fillText(mark.text, left + width - 4, y - 4 * devicePixelRatio);
  }
  ctx.restore();
}

/** The legend with the values at one x. */
function showValues(state, index) {
  const { what, data, legend } = state;
  const at = data[0][index];
  what.pointed?.(index === data[0].length - 1 ? null : index);
  const parts = what.series.map((one, number_) => {
    if (one.quiet || one.hidden) return null;
    const value = data[number_ + 1]?.[index];
    return h(
      "span.key",
      {},
      swatch(one, number_),
      `${one.name} `,
      h("b", {}, (what.show ?? number)(value)),
    );
  });
  const where =
    at === undefined
      ? null
      : h("span.key.muted", {}, `${what.x ?? "version"} ${(what.showX ?? number)(at)}`);
  fill(legend, where, parts);
}

function swatch(one, index) {
  const box = h(
    `span.swatch.dash-${one.bars || one.dash?.length === 0 ? 0 : index % DASHES.length}`,
  );
  box.style.setProperty("--swatch", `var(${one.colour})`);
  return box;
}

function sentence({ what, data }) {
  const last = data[0].length - 1;
  if (last < 0) return `${what.label}: nothing yet.`;
  const values = what.series
    .map((one, index) =>
      one.quiet ? null : `${one.name} ${(what.show ?? number)(data[index + 1][last])}`,
    )
    .filter(Boolean);
  return `${what.label}, ${data[0].length} points; at ${what.x ?? "version"} ${(what.showX ?? number)(data[0][last])}: ${values.join(", ")}.`;
}

function tabulate({ what, data }, into) {
  const first = Math.max(0, data[0].length - TABLE_ROWS);
  const rows = [];
  for (let at = data[0].length - 1; at >= first; at -= 1) {
    rows.push(
      h(
        "tr",
        {},
        h("th", { scope: "row" }, (what.showX ?? number)(data[0][at])),
        what.series.map((_, index) => h("td.num", {}, (what.show ?? number)(data[index + 1][at]))),
      ),
    );
  }
  fill(
    into,
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": `${what.label}, table` },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, what.x ?? "version"),
            what.series.map((one) => h("th.num", { scope: "col" }, one.name)),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
  );
}
