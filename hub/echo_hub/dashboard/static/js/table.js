/**
 * A table of many rows of which only those in sight exist. Sorted by its headings; arrow keys,
 * Page Up/Down, Home and End move between rows; a row's first cell is its link.
 */

import { append, fill, h, setText } from "./dom.js";

const ROW = 36; // px, as in the style sheet
const SPARE = 6;

/**
 * @param {object} what `label`; `key(row)`; `href(row)`; `empty()`: nodes shown without rows;
 *   `columns`: `{id, name, title, width, numeric, important, value(row), cell(row)}`: `value` sorts,
 *   `cell` gives the nodes shown, `rank` is 2 or 3 of those that a narrow page leaves out
 * @param {{by: string, down: boolean}} sort how it is sorted at first
 */
export function bigTable(what, sort) {
  const state = { what, rows: [], sort: { ...sort }, pool: new Map(), focus: null };
  const head = h(
    "div.vt-row.vt-head",
    { role: "row", "aria-rowindex": 1 },
    what.columns.map((column) => heading(state, column)),
  );
  const body = h("div.vt-body");
  const view = h("div.vt-view", { tabindex: 0, role: "rowgroup" }, body);
  const nothing = h("div.vt-empty");
  const table = h(
    "div.vt",
    { role: "table", "aria-label": what.label },
    h("div.vt-top", { role: "rowgroup" }, head),
    view,
  );
  const element = h("div.vt-outer", {}, table, nothing);
  Object.assign(state, { head, body, view, table, nothing });
  let asked = 0;
  const draw = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      paint(state);
    });
  };
  state.draw = draw;
  view.addEventListener("scroll", draw, { passive: true });
  view.addEventListener("keydown", (event) => keys(state, event));
  new ResizeObserver(draw).observe(view);
  element.set = (rows) => {
    state.rows = rows;
    order(state);
    if (table.hidden) paint(state); // whoever was told that the page is there may take the focus
    else draw();
  };
  element.sorted = () => ({ ...state.sort });
  table.style.setProperty("--columns", what.columns.map((one) => one.width ?? "1fr").join(" "));
  for (const [name, most] of [
    ["--some", 2],
    ["--few", 1],
  ]) {
    const kept = what.columns.filter((one) => (one.rank ?? 1) <= most);
    const width = (one) => (most === 1 ? one.narrow : null) ?? one.width ?? "1fr";
    table.style.setProperty(name, kept.map(width).join(" "));
  }
  return element;
}

function heading(state, column) {
  const button = h("button.quiet", { type: "button", title: column.title }, column.name);
  const cell = h(kindOf(column), { role: "columnheader" }, button);
  cell.dataset.column = column.id;
  button.addEventListener("click", () => {
    const down =
      state.sort.by === column.id ? !state.sort.down : Boolean(column.numeric || column.down);
    state.sort = { by: column.id, down };
    order(state);
    state.view.scrollTop = 0;
    state.draw();
    state.what.sorted?.(state.sort);
  });
  return cell;
}

function kindOf({ numeric, rank = 1 }) {
  return `div.vt-cell${numeric ? ".num" : ""}${["", "", ".lesser", ".lesser.least"][rank]}`;
}

function order({ what, rows, sort, head }) {
  const column = what.columns.find((one) => one.id === sort.by) ?? what.columns[0];
  const way = sort.down ? -1 : 1;
  const keyed = rows.map((row) => [column.value(row), row]);
  keyed.sort(([a], [b]) => compare(a, b) * way);
  keyed.forEach(([, row], index) => {
    rows[index] = row;
  });
  for (const cell of head.children) {
    const here = cell.dataset.column === column.id;
    cell.setAttribute("aria-sort", here ? (sort.down ? "descending" : "ascending") : "none");
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

function paint(state) {
  const { what, rows, view, body, pool, table, nothing } = state;
  table.setAttribute("aria-rowcount", rows.length + 1);
  table.hidden = !rows.length;
  if (!rows.length) fill(nothing, what.empty());
  else nothing.replaceChildren();
  body.style.setProperty("height", `${rows.length * ROW}px`);
  const first = Math.max(0, Math.floor(view.scrollTop / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((view.scrollTop + view.clientHeight) / ROW) + SPARE);
  const wanted = new Map();
  for (let at = first; at < last; at += 1) wanted.set(what.key(rows[at]), at);
  const free = [];
  for (const [key, line] of pool) {
    if (!wanted.has(key)) {
      if (line.contains(document.activeElement)) continue; // the focus is not taken away
      free.push(line);
      pool.delete(key);
    }
  }
  for (const [key, at] of wanted) {
    let line = pool.get(key);
    if (!line) {
      line = free.pop() ?? emptyLine(state);
      pool.set(key, line);
    }
    write(state, line, rows[at], at);
  }
  for (const line of free) line.remove();
}

function emptyLine({ what, body }) {
  const line = h(
    "div.vt-row",
    { role: "row" },
    what.columns.map((column, index) =>
      h(
        kindOf(column),
        { role: index ? "cell" : "rowheader" },
        index ? null : h("a", { href: "#" }),
      ),
    ),
  );
  body.append(line);
  return line;
}

function write({ what }, line, row, at) {
  if (line.at !== at) {
    line.at = at;
    line.style.setProperty("transform", `translateY(${at * ROW}px)`);
    line.setAttribute("aria-rowindex", at + 2);
  }
  if (line.row === row) return;
  line.row = row;
  what.columns.forEach((column, index) => {
    const cell = line.children[index];
    const target = index ? cell : cell.firstChild;
    const content = column.cell(row);
    if (typeof content === "string") setText(target, content);
    else {
      target.replaceChildren();
      append(target, [content]);
    }
    if (!index) target.setAttribute("href", what.href(row));
  });
}

function keys(state, event) {
  const line = event.target.closest(".vt-body .vt-row");
  const page = Math.max(1, Math.floor(state.view.clientHeight / ROW) - 1);
  const steps = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: page,
    PageUp: -page,
    Home: -Infinity,
    End: Infinity,
  };
  const step = steps[event.key];
  if (step === undefined || !state.rows.length) return;
  event.preventDefault();
  const from = line ? line.at : step > 0 ? -1 : 0;
  const to = Math.min(state.rows.length - 1, Math.max(0, from + step));
  const top = to * ROW;
  if (top < state.view.scrollTop) state.view.scrollTop = top;
  if (top + ROW > state.view.scrollTop + state.view.clientHeight) {
    state.view.scrollTop = top + ROW - state.view.clientHeight;
  }
  paint(state);
  state.pool.get(state.what.key(state.rows[to]))?.querySelector("a").focus({ preventScroll: true });
}
