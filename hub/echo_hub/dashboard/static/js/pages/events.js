/** What happened, and what is wrong now. */

import { get } from "../api.js";
import { card, empty, heading, labelled, pill, table, tableRow } from "../bits.js";
import { fill, h } from "../dom.js";
import { timeOf, words } from "../format.js";
import { visible, visibleText } from "../hostile.js";
import { live } from "../live.js";

const PAGE = 100;
const GRAVE = /refus|pause|ban|fail|died|lost|alert|disk|fire/;

export async function show(root, { signal, query }) {
  let kind = query.get("kind") ?? "";
  let rows = [];
  let next = null;
  let most = PAGE; // rows shown
  const kinds = new Set();
  const alerts = h("div");
  const list = h("div");
  const more = h("div.more");
  const pick = h("select", {
    onchange: () => {
      kind = pick.value;
      load().catch(() => {});
    },
  });
  root.append(
    heading("Events and alerts"),
    card("Alerts", { note: "now" }, alerts),
    card(
      "Events",
      { wide: true },
      h("div.filters", {}, labelled("Kind", pick, "event-kind")),
      list,
      more,
    ),
  );

  const drawKinds = (some) => {
    for (const row of some) kinds.add(row.kind);
    const options = ["", ...[...kinds].sort()];
    if (pick.options.length !== options.length) {
      fill(
        pick,
        options.map((one) =>
          h("option", { value: one }, one ? words(visibleText(one, 40)) : "all"),
        ),
      );
      pick.value = kind;
    }
  };
  const draw = () => {
    drawKinds(rows);
    fill(
      list,
      rows.length
        ? table("Events", ["when", "kind", "what happened", "details"], rows.map(line))
        : empty(
            kind
              ? "No event of this kind."
              : "Nothing has happened yet that an operator must know.",
            "Bans, refused updates, pauses and what operators did are listed here.",
          ),
    );
    drawMore();
  };
  const drawMore = () =>
    fill(
      more,
      next === null
        ? null
        : h("button", { type: "button", onclick: () => load(next).catch(() => {}) }, "Older"),
    );
  const load = async (before = null) => {
    const page = await get("/events/history", { kind, before, limit: PAGE }, { signal });
    rows = before === null ? page.events : [...rows, ...page.events];
    most = Math.max(PAGE, rows.length);
    next = page.next_before;
    draw();
  };
  live.on(
    "event",
    (news) => {
      const known = new Set(rows.map((row) => row.id));
      const fresh = news
        .filter((row) => !known.has(row.id) && (!kind || row.kind === kind))
        .reverse();
      if (!fresh.length) return;
      rows = [...fresh, ...rows];
      const cut = rows.length > most;
      if (cut) {
        rows.length = most; // the rest is what "Older" brings
        next = rows.at(-1).id;
      }
      const body = list.querySelector("tbody");
      if (!body) return draw();
      // the rows that are there stay: somebody may be reading one's details
      drawKinds(fresh);
      body.prepend(...fresh.slice(0, most).map((row) => tableRow(line(row))));
      while (body.rows.length > rows.length) body.lastElementChild.remove();
      if (cut && !more.firstChild) drawMore();
    },
    signal,
  );
  live.on("overview", () => drawAlerts(alerts, live.overview.alerts), signal);
  live.on("resync", () => load().catch(() => {}), signal);
  drawAlerts(alerts, live.overview?.alerts ?? (await get("/overview", {}, { signal })).alerts);
  await load();
}

function line(row) {
  return [
    timeOf(row.at),
    pill(GRAVE.test(row.kind) ? "warn" : "info", words(visibleText(row.kind, 40))),
    h("span.event-words", {}, visible(row.sentence, 500)),
    Object.keys(row.detail).length ? details(row.detail) : "",
  ];
}

/** What is in it is made when it is opened: a hundred events come a second, and few are read. */
function details(detail) {
  const box = h("details", {}, h("summary", {}, "details"));
  const open = () => box.append(h("dl.metrics", {}, Object.entries(detail).slice(0, 30).map(fact)));
  box.addEventListener("toggle", open, { once: true });
  return box;
}

function fact([name, value]) {
  const said = typeof value === "string" ? value : JSON.stringify(value);
  return h("div", {}, h("dt", {}, visible(name, 60)), h("dd", {}, visible(said, 400)));
}

function drawAlerts(into, alerts) {
  const key = JSON.stringify(alerts);
  if (into.key === key) return;
  into.key = key;
  const order = [...alerts].sort(
    (a, b) => Number(b.active) - Number(a.active) || b.since - a.since,
  );
  fill(
    into,
    order.length
      ? h(
          "ul.alerts",
          {},
          order.map((one) =>
            h(
              "li",
              { "data-active": String(one.active) },
              pill(
                one.active ? "bad" : "good",
                one.active ? words(one.kind) : `${words(one.kind)}, over`,
              ),
              h("span", {}, visible(one.sentence, 500)),
              h("span.muted", {}, "since ", timeOf(one.since)),
            ),
          ),
        )
      : empty("No alert."),
  );
}
