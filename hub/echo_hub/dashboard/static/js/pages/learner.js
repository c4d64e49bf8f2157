/** Every metric of the learner, small beside each other. */

import { get } from "../api.js";
import { choice, empty, heading, labelled, later } from "../bits.js";
import { chart } from "../charts.js";
import { fill, h, setText } from "../dom.js";
import { number, plural, words } from "../format.js";
import { stranger, visibleText } from "../hostile.js";
import { live } from "../live.js";
import { grouped, shown } from "../metrics.js";

const POINTS = 300;
const AT_ONCE = 20; // series asked for in one request
const RELOAD_MS = 2000;

export async function show(root, { signal, query }) {
  const asked = { text: query.get("q") ?? "", last: "" };
  const note = h("span.note", { role: "status" });
  const body = h("div");
  const search = h("input", {
    type: "search",
    value: asked.text,
    maxlength: 60,
    placeholder: "kl, lag, reward …",
    autocomplete: "off",
    spellcheck: "false",
  });
  search.addEventListener(
    "input",
    later(() => {
      asked.text = search.value.trim().toLowerCase();
      filter(body, asked.text);
    }, 100),
  );
  const span = choice(
    [
      ["", "all updates"],
      ["1000", "last 1,000"],
      ["100", "last 100"],
    ],
    "",
    (value) => {
      asked.last = value;
      reload();
    },
  );
  root.append(
    heading("Learner", note),
    h(
      "div.filters",
      {},
      labelled("Find a metric", search, "metric-search"),
      labelled("Show", span, "metric-span"),
    ),
    body,
  );
  const charts = new Map();

  const reload = async () => {
    const metrics = await get("/learner/metrics", {}, { signal });
    fill(note, plural(metrics.names.length, "metric"), ` of ${plural(metrics.versions, "update")}`);
    if (!metrics.names.length) {
      fill(body, empty("No update yet.", "Metrics appear with the first one."));
      charts.clear();
      return;
    }
    if (metrics.names.some((name) => !charts.has(name))) build(body, metrics.names, charts, signal);
    filter(body, asked.text);
    const from = asked.last
      ? Math.max(0, (live.overview?.version ?? metrics.versions) - Number(asked.last))
      : null;
    for (let at = 0; at < metrics.names.length; at += AT_ONCE) {
      const page = await get(
        "/learner/series",
        { name: metrics.names.slice(at, at + AT_ONCE), points: POINTS, first: from },
        { signal },
      );
      for (const series of page.series) {
        const entry = charts.get(series.name);
        if (entry) draw(entry, series, page.step);
      }
    }
  };
  const soon = later(
    () => !signal.aborted && !document.hidden && reload().catch(() => {}),
    RELOAD_MS,
  );
  live.on("update", soon, signal);
  live.on("resync", soon, signal);
  await reload();
}

function build(body, names, charts, signal) {
  charts.clear();
  fill(
    body,
    grouped(names).map(([title, list]) =>
      h(
        "section.metric-group",
        { "aria-label": title },
        h("h2", {}, stranger(title)),
        h(
          "div.multiples",
          {},
          list.map((name) => {
            const { means, show: as, axis, unit } = shown(name);
            const value = h("span.now");
            const pointed = (index) => showValue(charts.get(name), index);
            const plot = chart(
              {
                label: visibleText(words(name), 80),
                height: 92,
                show: as,
                axis,
                band: [3, 2],
                pointed,
                series: [
                  { name: "mean", colour: "--c1", dash: [] },
                  { name: "least", colour: "--c1", quiet: true },
                  { name: "greatest", colour: "--c1", quiet: true },
                ],
              },
              signal,
            );
            charts.set(name, { plot, value, as });
            const element = h(
              "div.multiple",
              { "data-name": `${words(name)} ${name} ${means}`.toLowerCase() },
              h(
                "div.multiple-head",
                {},
                h("h3", {}, stranger(words(name.split(".").at(-1)), 60)),
                value,
              ),
              h("p.means", {}, [means, unit].filter(Boolean).join(" · ") || "\u00a0"),
              plot,
            );
            return element;
          }),
        ),
      ),
    ),
  );
}

function draw(entry, { points }, step) {
  const { plot, value } = entry;
  entry.points = points;
  plot.set([
    points.map((one) => one.version),
    points.map((one) => one.mean),
    points.map((one) => one.low),
    points.map((one) => one.high),
  ]);
  showValue(entry, null);
  value.title = step > 1 ? `mean of the last ${number(step)} updates` : "of the last update";
}

/** The value at a point, or the last one. */
function showValue({ value, as, points }, index) {
  const point = points?.at(index ?? -1);
  const where = index === null || !point ? "" : `v${point.version}: `;
  setText(value, point ? `${where}${as(point.mean)}` : "–");
}

function filter(body, text) {
  for (const one of body.querySelectorAll(".multiple"))
    one.hidden = Boolean(text) && !one.dataset.name.includes(text);
  for (const group of body.querySelectorAll(".metric-group"))
    group.hidden = !group.querySelector(".multiple:not([hidden])");
}
