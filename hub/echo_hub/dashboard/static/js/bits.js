/** Small parts that several pages are made of. */

import { fill, h, icon } from "./dom.js";
import { number, percent } from "./format.js";

/** A titled box. `note` stands small beside the title. */
export function card(title, { note = null, wide = false, id = null } = {}, ...content) {
  const name = id ?? `card-${title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}`;
  return h(
    `section.card${wide ? ".wide" : ""}`,
    { "aria-labelledby": name },
    h("div.card-head", {}, h("h2", { id: name }, title), note ? h("span.note", {}, note) : null),
    content,
  );
}

/** A number with its name. */
export function stat(name, value, note = null) {
  return h(
    "div.stat",
    {},
    h("dt", {}, name),
    h("dd", {}, value, note ? h("span.note", {}, ` ${note}`) : null),
  );
}

export function stats(...items) {
  return h("dl.stats", {}, items);
}

export function pill(kind, text, drawn = kind) {
  return h("span.pill", { "data-kind": kind }, icon(drawn), ` ${text}`);
}

/** What stands where there is nothing yet: what that means, and what to do. */
export function empty(sentence, ...next) {
  return h(
    "div.empty-state",
    {},
    h("p", {}, sentence),
    next.length ? h("p.muted", {}, next) : null,
  );
}

/** Horizontal bars: `[{name, value, text, colour}]`, in shares of the greatest or of `most`. */
export function bars(rows, { most = null, label } = {}) {
  const top = most ?? Math.max(...rows.map((row) => row.value), 1e-12);
  return h(
    "ul.bars",
    { "aria-label": label },
    rows.map((row) => {
      const bar = h("span.bar", { "aria-hidden": "true" }, h("span.bar-fill"));
      bar.firstChild.style.setProperty(
        "--share",
        String(Math.min(1, Math.max(0, row.value / top))),
      );
      bar.firstChild.style.setProperty("--bar", `var(${row.colour ?? "--c1"})`);
      if (row.mark !== undefined && row.mark !== null) {
        const mark = h("span.bar-mark");
        mark.style.setProperty("--share", String(Math.min(1, row.mark / top)));
        bar.append(mark);
      }
      return h(
        "li",
        {},
        h("span.bar-name", {}, row.name),
        bar,
        h("span.bar-value", {}, row.text ?? number(row.value)),
      );
    }),
  );
}

/** One bar of parts that add up to 1: `[{name, share, colour}]`, with a legend. */
export function parts(rows, label) {
  const strip = h(
    "div.strip",
    { "aria-hidden": "true" },
    rows.map((row) => {
      const part = h("span");
      part.style.setProperty("--share", String(row.share));
      part.style.setProperty("--bar", `var(${row.colour})`);
      return part;
    }),
  );
  return h(
    "div",
    { role: "group", "aria-label": label },
    strip,
    h(
      "ul.strip-legend",
      {},
      rows.map((row) => {
        const swatch = h("span.swatch", { "aria-hidden": "true" });
        swatch.style.setProperty("--swatch", `var(${row.colour})`);
        return h("li", {}, swatch, `${row.name} `, h("b", {}, percent(row.share)));
      }),
    ),
  );
}

/** A row of `table`. */
export function tableRow(cells, numeric = []) {
  return h(
    "tr",
    {},
    cells.map((cell, at) =>
      at ? h(`td${numeric[at] ? ".num" : ""}`, {}, cell) : h("th", { scope: "row" }, cell),
    ),
  );
}

/** A plain table: column names (a leading "#" means numbers), rows of cells. */
export function table(label, columns, rows) {
  const numeric = columns.map((name) => name.startsWith("#"));
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": `${label}, scrollable` },
    h(
      "table",
      {},
      h("caption.visually-hidden", {}, label),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((name, at) =>
            h(`th${numeric[at] ? ".num" : ""}`, { scope: "col" }, name.replace(/^#/, "")),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) => tableRow(cells, numeric)),
      ),
    ),
  );
}

/** A page's heading. */
export function heading(title, ...beside) {
  return h("div.page-head", {}, h("h1", {}, title), beside);
}

/** Redraw a part at most once a frame, and not while the page is hidden. */
export function steadily(draw, signal) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      if (!signal.aborted) draw();
    });
  };
}

/** A field with its label. */
export function labelled(text, input, id) {
  input.id = id;
  return h("div.filter", {}, h("label", { for: id }, text), input);
}

/** A choice: `[[value, words]]`. */
export function choice(options, value, onchange) {
  const element = h(
    "select",
    { onchange: () => onchange(element.value) },
    options.map(([one, text]) => h("option", { value: one }, text)),
  );
  element.value = value;
  return element;
}

/** Call `fn` once typing has stopped. */
export function later(fn, ms = 250) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...values), ms);
  };
}

/** Put `content` in `into` unless the same was put there before (`key` tells). */
export function once(into, key, content) {
  const text = JSON.stringify(key);
  if (into.drawnFrom === text) return;
  into.drawnFrom = text;
  fill(into, content());
}
