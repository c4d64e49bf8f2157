/** For volunteers: how far the run is, who helps, how to join. It needs no token and says no address. */

import { get } from "../api.js";
import { card, empty, once, stat, stats, table } from "../bits.js";
import { chart } from "../charts.js";
import { showProblem } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, percent, reward } from "../format.js";
import { stranger, visibleText } from "../hostile.js";

const EVERY_MS = 5000;
const LEADERS = 100;

export async function show(root) {
  const ending = new AbortController();
  const title = h("h1", {}, "A run of echo-p2p");
  const lead = h("p.lead");
  const lost = h("div", { role: "status" });
  const boxes = { progress: h("div"), leaders: h("div"), join: h("div") };
  const rewards = chart(
    {
      label: "Reward by version, with its 95 % confidence band",
      height: 240,
      show: reward,
      band: [3, 2],
      series: [
        { name: "training", colour: "--c1", dash: [] },
        { name: "low", colour: "--c1", quiet: true },
        { name: "high", colour: "--c1", quiet: true },
        { name: "held-out", colour: "--c2", dots: true, width: 1 },
      ],
    },
    ending.signal,
  );
  fill(
    root,
    h(
      "div.page.public-page",
      {},
      title,
      lead,
      lost,
      h(
        "div.cards",
        {},
        card("Progress", { wide: true }, boxes.progress, rewards),
        card("How to join", {}, boxes.join),
        card("Who helps", { note: "accepted rollouts" }, boxes.leaders),
      ),
    ),
  );
  document.title = "echo-p2p";
  const reload = async () => {
    if (document.hidden && root.dataset.ready) return;
    try {
      draw(await get("/public"), { title, lead, boxes, rewards });
      lost.replaceChildren();
      root.dataset.ready = "public";
    } catch (error) {
      showProblem(lost, error);
    }
  };
  setInterval(reload, EVERY_MS);
  await reload();
}

function draw(facts, { title, lead, boxes, rewards }) {
  once(title, facts.run, () => stranger(facts.run));
  document.title = `${visibleText(facts.run, 60)} · echo-p2p`;
  once(lead, [facts.task, facts.base], () => [
    "A language model (",
    stranger(facts.base),
    ") learns ",
    stranger(facts.task),
    " by reinforcement learning on volunteers' computers.",
  ]);
  once(
    boxes.progress,
    [
      facts.version,
      facts.updates,
      facts.nodes_in_session,
      facts.rollouts_accepted,
      facts.reward.latest,
    ],
    () => {
      const { updates, heldout } = facts.reward;
      const held = new Map(heldout.map((one) => [one.version, one.reward]));
      const points = new Map(updates.map((one) => [one.version, one]));
      const xs = [...new Set([...held.keys(), ...points.keys()])].sort((a, b) => a - b);
      rewards.set([
        xs,
        ...["mean", "low", "high"].map((name) => xs.map((x) => points.get(x)?.[name] ?? null)),
        xs.map((x) => held.get(x) ?? null),
      ]);
      const done = facts.updates ? Math.min(1, facts.version / facts.updates) : null;
      return [
        done === null
          ? null
          : h("progress", {
              max: 1,
              value: done,
              "aria-label": `${percent(done)} of the updates are made`,
            }),
        stats(
          stat(
            "Updates",
            facts.updates
              ? `${number(facts.version)} of ${number(facts.updates)}`
              : number(facts.version),
          ),
          stat("Nodes now", number(facts.nodes_in_session)),
          stat("Rollouts accepted", number(facts.rollouts_accepted)),
          stat(
            "Reward",
            reward(heldout.at(-1)?.reward ?? facts.reward.latest?.mean),
            heldout.length ? "held-out" : null,
          ),
        ),
      ];
    },
  );
  once(boxes.leaders, facts.leaders, () =>
    facts.leaders.length
      ? table(
          "Leader board",
          ["#rank", "who", "#tokens", "#rollouts", "#share"],
          facts.leaders
            .slice(0, LEADERS)
            .map((one, at) => [
              `${at + 1}`,
              stranger(one.name, 60),
              number(one.tokens),
              number(one.accepted),
              percent(one.share, 1),
            ]),
        )
      : empty("Nobody yet.", "Be the first."),
  );
  once(boxes.join, [facts.join, facts.bootstrap], () => join(facts));
}

function join({ join: command, bootstrap }) {
  const file = new Blob([bootstrap], { type: "text/plain" });
  const copy = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(command);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Select it and copy";
        }
      },
    },
    "Copy",
  );
  return h(
    "ol.join",
    {},
    h("li", {}, "Install echo-p2p (docs/volunteer.md)."),
    h(
      "li",
      {},
      "Save ",
      h(
        "a",
        { href: URL.createObjectURL(file), download: "bootstrap_peers.toml" },
        "bootstrap_peers.toml",
      ),
      ": it says where the run is and whose it is.",
    ),
    h("li", {}, "Type:", h("pre", { tabindex: 0 }, command), copy),
    h("li.muted", {}, "No open port and no account are needed; stop whenever you like."),
  );
}
