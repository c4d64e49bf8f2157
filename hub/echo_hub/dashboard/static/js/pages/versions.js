/** The chain of policy versions. */

import { get } from "../api.js";
import { card, heading } from "../bits.js";
import { chart } from "../charts.js";
import { fill, h } from "../dom.js";
import { bytes, percent, plural, reward, seconds, timeOf } from "../format.js";
import { live } from "../live.js";
import { bigTable } from "../table.js";
import { marks, showVersion } from "./version.js";

const PAGE = 200;

export async function show(root, place) {
  return place.rest[0] ? showVersion(root, Number(place.rest[0]), place) : showAll(root, place);
}

function columns(newest) {
  return [
    {
      id: "version",
      name: "Version",
      width: "4.5rem",
      narrow: "4.2rem",
      value: (row) => row.version,
      cell: (row) => `v${row.version}`,
    },
    {
      id: "marks",
      name: "State",
      width: "minmax(5.5rem, 1fr)",
      narrow: "minmax(3rem, 1fr)",
      value: (row) => (row.pinned ? 1 : 0),
      cell: (row) => marks(row, newest()),
    },
    {
      id: "reward",
      name: "Reward",
      title: "mean of the rollouts its update was made from",
      width: "5.5rem",
      narrow: "3.6rem",
      numeric: true,
      value: (row) => row.reward ?? -Infinity,
      cell: (row) => reward(row.reward),
    },
    {
      id: "heldout",
      name: "Held-out",
      title: "with its 95 % interval",
      width: "10.5rem",
      numeric: true,
      rank: 2,
      value: (row) => row.heldout?.reward ?? -Infinity,
      cell: (row) =>
        row.heldout
          ? `${reward(row.heldout.reward)} (${reward(row.heldout.low)}–${reward(row.heldout.high)})`
          : "–",
    },
    {
      id: "size",
      name: "Size",
      width: "5.5rem",
      numeric: true,
      rank: 2,
      value: (row) => row.size ?? 0,
      cell: (row) => bytes(row.size),
    },
    {
      id: "delta",
      name: "Delta",
      title: "bytes of the delta over those of the snapshot",
      width: "4rem",
      numeric: true,
      rank: 3,
      value: (row) => row.delta_ratio ?? 2,
      cell: (row) => percent(row.delta_ratio),
    },
    {
      id: "spread",
      name: "On nodes",
      title: "of those in session when it was announced",
      width: "6rem",
      numeric: true,
      rank: 3,
      value: (row) => row.spread?.nodes_reached ?? -1,
      cell: (row) =>
        row.spread ? `${row.spread.nodes_reached} of ${row.spread.nodes_in_session}` : "–",
    },
    {
      id: "last",
      name: "Until all",
      title: "until the last of them had it",
      width: "5.5rem",
      numeric: true,
      rank: 3,
      value: (row) => row.spread?.last_s ?? Infinity,
      cell: (row) => seconds(row.spread?.last_s),
    },
    {
      id: "kept",
      name: "On disk",
      title: "it can be exported and gone back to",
      width: "4.5rem",
      rank: 2,
      value: (row) => (row.kept ? 1 : 0),
      cell: (row) => (row.kept ? "yes" : "no"),
    },
    {
      id: "at",
      name: "Made",
      width: "6rem",
      narrow: "5rem",
      value: (row) => row.at,
      cell: (row) => timeOf(row.at),
    },
  ];
}

async function showAll(root, { signal }) {
  const rows = new Map();
  let newest = null;
  const note = h("span.note", { role: "status" });
  const sizes = chart(
    {
      label: "Bytes of each published version",
      height: 150,
      show: bytes,
      axis: bytes,
      range: [0, null],
      series: [
        { name: "snapshot", colour: "--c1", dots: true },
        { name: "delta", colour: "--c2", dots: true },
      ],
    },
    signal,
  );
  const spread = chart(
    {
      label: "Seconds until a version was on the nodes",
      height: 150,
      show: seconds,
      axis: seconds,
      range: [0, null],
      series: [
        { name: "half", colour: "--c3", dots: true },
        { name: "nine tenths", colour: "--c1", dots: true },
        { name: "last", colour: "--c2", dots: true },
      ],
    },
    signal,
  );
  const list = bigTable(
    {
      label: "Versions",
      key: (row) => row.version,
      columns: columns(() => newest),
      href: (row) => `#/versions/${row.version}`,
      empty: () =>
        h("p", {}, "No version yet. Version 0 appears as soon as the hub has loaded its base."),
    },
    { by: "version", down: true },
  );
  root.append(
    heading("Versions", note),
    h(
      "div.cards.slim",
      {},
      card("Size", { note: "published versions" }, sizes),
      card("Dissemination", { note: "published versions" }, spread),
    ),
    list,
  );
  document.body.classList.add("full-height");
  signal.addEventListener("abort", () => document.body.classList.remove("full-height"));

  const draw = () => {
    const all = [...rows.values()];
    const published = all
      .filter((one) => one.spread)
      .sort((a, b) => a.version - b.version)
      .slice(-200);
    const xs = published.map((one) => one.version);
    sizes.set([xs, published.map((one) => one.size), published.map((one) => one.delta_size)]);
    spread.set([
      xs,
      ...["half_s", "nine_tenths_s", "last_s"].map((name) =>
        published.map((one) => one.spread[name]),
      ),
    ]);
    fill(note, plural(rows.size, "version"), newest === null ? "" : `, newest v${newest}`);
    list.set(all);
  };
  const load = async () => {
    let total = Infinity;
    let before = null;
    while (rows.size < total) {
      const page = await get("/versions", { before, limit: PAGE }, { signal });
      ({ total, newest } = page);
      for (const row of page.versions) rows.set(row.version, row);
      before = page.versions.at(-1)?.version ?? null;
      draw();
      if (page.versions.length < PAGE || before === null) break;
    }
  };
  live.on(
    "version",
    async (news) => {
      for (const row of news) rows.set(row.version, row);
      newest = Math.max(newest ?? 0, ...news.map((row) => row.version));
      draw();
    },
    signal,
  );
  live.on("resync", load, signal);
  await load();
}
