/** Groups of rollouts in a table, for the pages that list some. */

import { pill, table } from "../bits.js";
import { h } from "../dom.js";
import { number, reward, shortPeer, timeOf, words } from "../format.js";
import { stranger } from "../hostile.js";
import { GROUP } from "../reasons.js";

/** Mean of a group's rewards, or null. */
export function meanReward({ rewards }) {
  return rewards?.length ? rewards.reduce((sum, one) => sum + one, 0) / rewards.length : null;
}

/** What became of a group. */
export function stateOf(group) {
  const { kind, text } = GROUP[group.state] ?? { kind: "info", text: words(group.state) };
  if (group.reason) return pill(kind, words(group.reason));
  if (group.disputed) return pill("warn", "disputed");
  return pill(kind, group.update ? `${text} · v${group.update}` : text);
}

/** A table of `GroupFacts`. */
export function groupTable(groups, { node = true } = {}) {
  const columns = [
    "group",
    "#reward",
    "#version",
    "state",
    ...(node ? ["node"] : []),
    "task",
    "audited",
    "received",
    "best answer",
  ];
  return table(
    "Groups",
    columns,
    groups.map((one) => [
      h("a", { href: `#/rollouts/${one.group}` }, `${one.group}`),
      reward(meanReward(one)),
      `v${number(one.version)}`,
      stateOf(one),
      ...(node
        ? [h("a.peer", { href: `#/nodes/${encodeURIComponent(one.node)}` }, shortPeer(one.node))]
        : []),
      stranger(one.task, 30),
      one.audited ? "yes" : "no",
      timeOf(one.received_at),
      h("span.excerpt", {}, stranger(one.excerpt, 80)),
    ]),
  );
}
