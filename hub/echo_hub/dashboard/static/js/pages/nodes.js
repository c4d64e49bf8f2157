/** All nodes, and one of them. */

import { get } from "../api.js";
import { choice, heading, labelled, later, pill } from "../bits.js";
import { showProblem } from "../dialog.js";
import { fill, h } from "../dom.js";
import { ago, moment, number, percent, plural, shortPeer, words } from "../format.js";
import { stranger } from "../hostile.js";
import { live } from "../live.js";
import { STANDING } from "../reasons.js";
import { bigTable } from "../table.js";
import { showNode } from "./node.js";

const PAGE = 500; // rows asked for at a time
const MOST = 10_000;
const SORT_MS = 1000;

export async function show(root, place) {
  if (place.rest[0]) return showNode(root, place.rest[0], place);
  return showAll(root, place);
}

const COLUMNS = [
  {
    id: "node",
    name: "Node",
    width: "minmax(10rem, 1.6fr)",
    narrow: "minmax(6rem, 1fr)",
    value: (row) => (row.name || "\uffff") + row.node,
    cell: (row) =>
      row.name
        ? [stranger(row.name, 40), h("span.peer", {}, shortPeer(row.node))]
        : h("span.peer", {}, shortPeer(row.node)),
  },
  {
    id: "standing",
    name: "Standing",
    width: "7rem",
    value: (row) => row.standing,
    cell: (row) => pill(STANDING[row.standing].kind, STANDING[row.standing].text),
  },
  {
    id: "rate",
    name: "Rate",
    title: "accepted rollouts a second, of late",
    width: "5rem",
    narrow: "4.5rem",
    numeric: true,
    value: (row) => row.rate,
    cell: (row) => `${number(row.rate)}/s`,
  },
  {
    id: "accepted",
    name: "Accepted",
    title: "rollouts",
    width: "5rem",
    numeric: true,
    rank: 2,
    value: (row) => row.accepted,
    cell: (row) => number(row.accepted),
  },
  {
    id: "rejected",
    name: "Rejected",
    title: "rollouts, and the commonest reason",
    width: "minmax(8rem, 1fr)",
    rank: 2,
    down: true,
    value: (row) => row.rejected_total,
    cell: rejections,
  },
  {
    id: "version",
    name: "Version",
    title: "newest policy version it has",
    width: "4rem",
    numeric: true,
    rank: 3,
    value: (row) => row.version ?? -1,
    cell: (row) => (row.version === null ? "–" : `v${row.version}`),
  },
  {
    id: "audit",
    name: "Audited",
    title: "how likely its next group is to be audited",
    width: "4.3rem",
    numeric: true,
    rank: 3,
    value: (row) => row.audit_probability,
    cell: (row) => percent(row.audit_probability),
  },
  {
    id: "reachable",
    name: "Reachable",
    title: "whether others can dial it",
    width: "5.2rem",
    rank: 3,
    value: (row) => (row.reachable === null ? 0 : row.reachable ? 2 : 1),
    cell: (row) => (row.reachable === null ? "–" : row.reachable ? "yes" : "no"),
  },
  {
    id: "engine",
    name: "Engine",
    width: "minmax(5rem, .7fr)",
    rank: 3,
    value: (row) => row.engine,
    cell: (row) => stranger(row.engine, 24),
  },
  {
    id: "seen",
    name: "Seen",
    title: "when it last asked for work or handed it in",
    width: "5.6rem",
    rank: 2,
    value: (row) => row.last_seen ?? 0,
    cell: (row) =>
      h(
        "span",
        { title: moment(row.last_seen) },
        row.in_session ? h("span.dot.on", { role: "img", "aria-label": "in session" }) : null,
        ago(row.last_seen),
      ),
  },
];

function rejections(row) {
  if (!row.rejected_total) return "0";
  const [code] = Object.entries(row.rejected).sort((a, b) => b[1] - a[1])[0] ?? [""];
  return h(
    "span",
    {
      title: Object.entries(row.rejected)
        .map(([one, count]) => `${words(one)} ${count}`)
        .join(", "),
    },
    number(row.rejected_total),
    h("span.muted", {}, ` ${words(code)}`),
  );
}

async function showAll(root, { signal, query }) {
  const rows = new Map();
  let missing = 0;
  const wrong = h("div", { role: "alert" });
  const filter = { text: query.get("q") ?? "", standing: query.get("standing") ?? "" };
  const note = h("span.note", { role: "status" });
  const table = bigTable(
    {
      label: "Nodes",
      key: (row) => row.node,
      columns: COLUMNS,
      href: (row) => `#/nodes/${encodeURIComponent(row.node)}`,
      empty: () =>
        rows.size
          ? h(
              "p",
              {},
              "No node matches. ",
              h("button", { type: "button", onclick: reset }, "Show all"),
            )
          : h(
              "div",
              {},
              h("p", {}, "No node has joined yet."),
              h(
                "p.muted",
                {},
                "Hand volunteers the file bootstrap_peers.toml; they type: ",
                h("code", {}, "echo-node join --bootstrap bootstrap_peers.toml"),
              ),
            ),
    },
    { by: query.get("by") ?? "rate", down: query.get("down") !== "0" },
  );
  const search = h("input", {
    type: "search",
    placeholder: "name, peer id, engine, reason …",
    value: filter.text,
    maxlength: 100,
    autocomplete: "off",
    spellcheck: "false",
  });
  search.addEventListener(
    "input",
    later(() => {
      filter.text = search.value;
      draw();
    }, 120),
  );
  const standing = choice(
    [
      ["", "any"],
      ["in-session", "in session"],
      ...Object.entries(STANDING).map(([id, one]) => [id, one.text]),
    ],
    filter.standing,
    (value) => {
      filter.standing = value;
      draw();
    },
  );
  function reset() {
    search.value = filter.text = "";
    standing.value = filter.standing = "";
    draw();
    search.focus();
  }
  root.append(
    heading("Nodes", note),
    h(
      "div.filters",
      {},
      labelled("Search", search, "node-search"),
      labelled("Standing", standing, "node-standing"),
    ),
    wrong,
    table,
  );
  document.body.classList.add("full-height");
  signal.addEventListener("abort", () => document.body.classList.remove("full-height"));

  function draw() {
    const shown = matching([...rows.values()], filter);
    table.set(shown);
    const working = shown.filter((row) => row.in_session).length;
    fill(
      note,
      shown.length === rows.size
        ? plural(rows.size, "node")
        : `${number(shown.length)} of ${plural(rows.size, "node")}`,
      `, ${number(working)} in session`,
      missing > 0 ? `, ${number(missing)} more are coming` : "",
    );
  }
  let drawn = 0;
  const soon = () => {
    // sorting 10,000 rows at every event would be all that the page does
    drawn ||= setTimeout(() => {
      drawn = 0;
      if (!signal.aborted) draw();
    }, SORT_MS);
  };
  live.on(
    "nodes",
    (batches) => {
      for (const row of batches.flat()) rows.set(row.node, row);
      soon();
    },
    signal,
  );
  // the page is there with its first rows; the others come while it is looked at
  const load = () =>
    new Promise((resolve) => {
      const grown = (total) => {
        missing = total - rows.size;
        if (rows.size > PAGE && missing > 0) soon();
        else draw();
        resolve();
      };
      loadAll(rows, signal, grown).catch((error) => {
        if (error.name !== "AbortError") showProblem(wrong, error);
        resolve();
      });
    });
  live.on("resync", load, signal);
  await load();
}

async function loadAll(rows, signal, grown) {
  let total = Infinity;
  const asked = { limit: PAGE, sort: "first_seen", descending: false };
  for (let offset = 0; offset < Math.min(total, MOST); offset += PAGE) {
    const page = await get("/nodes", { ...asked, offset }, { signal });
    total = Math.min(MOST, page.total);
    for (const row of page.nodes) rows.set(row.node, row);
    grown(page.nodes.length ? total : rows.size);
    if (!page.nodes.length) break;
  }
}

/** The rows that a search and a standing leave. */
export function matching(rows, { text, standing }) {
  const asked = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    if (standing === "in-session" ? !row.in_session : standing && row.standing !== standing)
      return false;
    if (!asked.length) return true;
    const words_ =
      `${row.name} ${row.node} ${row.engine} ${row.software} ${row.why} ${Object.keys(row.rejected).map(words).join(" ")}`.toLowerCase();
    return asked.every((one) => words_.includes(one));
  });
}
