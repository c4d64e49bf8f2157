/** Is it learning, is it healthy, what limits it? And the numbers behind the three answers. */

import { get } from "../api.js";
import { bars, card, empty, heading, once, parts, stat, stats, steadily, table } from "../bits.js";
import { chart } from "../charts.js";
import { fill, h, icon, setText } from "../dom.js";
import { bytes, number, percent, plural, rate, reward, seconds, words } from "../format.js";
import { stranger } from "../hostile.js";
import { explain } from "../judge.js";
import { live } from "../live.js";

const QUESTIONS = [
  ["learning", "Is it learning?"],
  ["health", "Is it healthy?"],
  ["limits", "What limits it?"],
];

export async function show(root, { signal }) {
  live.overview ??= await get("/overview", {}, { signal });
  const view = build(signal);
  root.append(heading("Overview", h("span.note", { id: "overview-note" })), view.element);
  const draw = steadily(() => update(view, live.overview), signal);
  update(view, live.overview);
  live.on("overview", draw, signal);
}

function build(signal) {
  const answers = QUESTIONS.map(([id, question]) => ({
    id,
    word: h("p.word"),
    sentence: h("p.sentence"),
    fix: h("p.muted.fix"),
    question,
  }));
  for (const one of answers) {
    one.element = h(
      "section.answer",
      { id: `answer-${one.id}`, "aria-labelledby": `question-${one.id}` },
      h("h2", { id: `question-${one.id}` }, one.question),
      one.word,
      one.sentence,
      one.fix,
    );
  }
  const rewards = chart(
    {
      label: "Reward by version, with its 95 % confidence band",
      height: 260,
      show: reward,
      band: [3, 2],
      series: [
        { name: "training", colour: "--c1", dash: [] },
        { name: "low", colour: "--c1", quiet: true },
        { name: "high", colour: "--c1", quiet: true },
        { name: "held-out", colour: "--c2", dots: true, dash: [4, 4], width: 1 },
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
  const boxes = Object.fromEntries(
    ["time", "rates", "lag", "spreadFacts", "groups", "rejected", "tasks", "heldout"].map(
      (name) => [name, h("div")],
    ),
  );
  const tasks = card("Tasks", { note: "of late" }, boxes.tasks);
  const element = h(
    "div",
    {},
    h(
      "div.answers",
      {},
      answers.map((one) => one.element),
    ),
    h(
      "div.cards",
      {},
      card("Reward", { wide: true, note: "by policy version" }, rewards, boxes.heldout),
      card("Learner's time", { note: "last updates" }, boxes.time),
      card("Rate", { note: "rollouts a second" }, boxes.rates),
      card("Lag", { note: "groups trained on, by versions behind" }, boxes.lag),
      card("Dissemination", { note: "last versions" }, spread, boxes.spreadFacts),
      card("Groups", { note: "where they are now" }, boxes.groups),
      card("Rejected rollouts", { note: "by reason" }, boxes.rejected),
      tasks,
    ),
  );
  return { element, answers, rewards, spread, boxes, tasks };
}

function update(view, overview) {
  for (const one of view.answers) {
    const { kind, word, sentence, fix } = explain[one.id](overview);
    one.element.dataset.kind = kind;
    if (one.word.dataset.key !== kind + word) {
      one.word.dataset.key = kind + word;
      fill(one.word, icon(kind), word);
    }
    setText(one.sentence, sentence);
    setText(one.fix, fix ?? "");
  }
  const { run } = overview;
  once(document.getElementById("overview-note"), [run, overview.version], () => [
    `task ${run.task} · base ${run.base} · ${run.mode}, S = ${run.staleness}, a version every ${plural(run.kappa, "update")}`,
    run.updates
      ? ` · update ${number(overview.version)} of ${number(run.updates)}`
      : ` · ${plural(overview.version, "update")}`,
  ]);
  const { boxes } = view;
  drawReward(view, overview);
  drawTime(boxes.time, overview.learner);
  drawRates(boxes.rates, overview);
  drawLag(boxes.lag, overview.lag);
  drawSpread(view, overview.dissemination);
  drawGroups(boxes, overview.counts);
  drawTasks(view, overview.tasks);
}

function drawReward({ rewards, boxes }, { reward: facts }) {
  const key = [facts.updates.at(-1), facts.updates.length, facts.heldout.at(-1)];
  once(boxes.heldout, key, () => {
    const held = new Map(facts.heldout.map((one) => [one.version, one]));
    const points = new Map(facts.updates.map((one) => [one.version, one]));
    const versions = [...new Set([...held.keys(), ...points.keys()])].sort((a, b) => a - b);
    const column = (from, name) => versions.map((version) => from.get(version)?.[name] ?? null);
    rewards.set([
      versions,
      column(points, "mean"),
      column(points, "low"),
      column(points, "high"),
      column(held, "reward"),
    ]);
    const last = facts.heldout.at(-1);
    if (!versions.length)
      return empty(
        "No update yet.",
        "The first comes once enough groups are in; nodes join with the file bootstrap_peers.toml.",
      );
    if (!last)
      return h("p.muted", {}, "No held-out evaluation yet (evaluation.prompts in run.toml).");
    return h(
      "p.muted",
      {},
      `Held-out at v${last.version}: ${reward(last.reward)} (95 %: ${reward(last.low)} to ${reward(last.high)}) of ${plural(last.prompts, "prompt")}.`,
    );
  });
}

function drawTime(box, learner) {
  once(box, [learner.idle, learner.training, learner.train_s, learner.period_s], () => {
    if (learner.idle === null) return empty("Known after the second update.");
    return [
      parts(
        [
          { name: "training", share: learner.training ?? 0, colour: "--c1" },
          { name: "auditing", share: learner.auditing ?? 0, colour: "--c3" },
          { name: "idle", share: learner.idle, colour: "--c-idle" },
        ],
        "Shares of the learner's time",
      ),
      stats(
        stat("Idle", percent(learner.idle, 1)),
        stat("An update takes", seconds(learner.train_s)),
        stat("One every", seconds(learner.period_s)),
      ),
    ];
  });
}

function drawRates(box, { rates, run }) {
  once(box, rates, () => {
    const rows = [
      {
        name: "had",
        value: rates.had,
        text: rate(rates.had, "/s"),
        colour: rates.needed !== null && rates.had < rates.needed ? "--c2" : "--c1",
        mark: rates.needed,
      },
      {
        name: "trained on",
        value: rates.consumed ?? 0,
        text: rates.consumed === null ? "–" : rate(rates.consumed, "/s"),
        colour: "--c3",
      },
    ];
    const most = Math.max(rates.had, rates.needed ?? 0, rates.consumed ?? 0, 1e-9) * 1.05;
    const needed =
      rates.needed === null
        ? "What is needed is known after the first update."
        : `${rate(rates.needed)} keep the learner busy (${number(run.groups_per_update * run.group_size)} rollouts an update); the line marks it.`;
    return [bars(rows, { most, label: "Rollouts a second" }), h("p.muted", {}, needed)];
  });
}

function drawLag(box, lag) {
  once(box, lag, () => {
    const total = Object.values(lag.histogram).reduce((sum, count) => sum + count, 0);
    if (!total) return empty("Nothing was trained on yet.");
    const top = Math.max(lag.staleness, ...Object.keys(lag.histogram).map(Number));
    const rows = Array.from({ length: top + 1 }, (_, at) => {
      const count = lag.histogram[at] ?? 0;
      return {
        name: at === lag.staleness ? `${at} = S` : `${at}`,
        value: count,
        text: percent(count / total),
        colour: at > lag.staleness ? "--c2" : "--c1",
      };
    });
    return [
      bars(rows.slice(0, 12), { label: "Share of groups by lag" }),
      h(
        "p.muted",
        {},
        `Last update: mean ${number(lag.last_mean)}, greatest ${number(lag.last_max)}; nothing over S = ${lag.staleness} is trained on.`,
      ),
    ];
  });
}

function drawSpread({ spread, boxes }, facts) {
  once(boxes.spreadFacts, facts, () => {
    const rows = facts.recent;
    const timed = rows.filter((one) => one.last_s !== null);
    spread.set([
      timed.map((one) => one.version),
      ...["half_s", "nine_tenths_s", "last_s"].map((name) => timed.map((one) => one[name])),
    ]);
    const last = rows.at(-1);
    if (!last) return empty("No version was announced yet.");
    return [
      stats(
        stat("All nodes have it in", seconds(facts.last_s_median), "median"),
        stat("From peers", percent(facts.peer_share)),
      ),
      h(
        "p.muted",
        {},
        `v${last.version} (${bytes(last.size)}) is on ${number(last.nodes_reached)} of ${plural(last.nodes_in_session, "node")}.`,
      ),
    ];
  });
}

function drawGroups(boxes, counts) {
  once(boxes.groups, counts, () => [
    h(
      "ol.pipeline",
      { "aria-label": "Groups by where they are" },
      [
        ["at nodes", counts.running],
        ["being checked", counts.checking],
        ["buffered", counts.buffered],
        ["in the update", counts.training],
      ].map(([name, count]) => h("li", {}, h("b", {}, number(count)), h("span", {}, name))),
    ),
    stats(
      stat("Rollouts accepted", number(counts.rollouts_accepted)),
      stat(
        "Nodes in session",
        number(counts.nodes_in_session),
        `of ${number(counts.nodes_known)} known`,
      ),
      stat("Banned", number(counts.nodes_banned)),
    ),
    h(
      "p.muted",
      {},
      `${number(counts.audited)} groups were derived again, ${number(counts.not_audited)} taken on their node's standing.`,
    ),
  ]);
  once(boxes.rejected, counts.rollouts_rejected, () => {
    const rows = Object.entries(counts.rollouts_rejected).sort((a, b) => b[1] - a[1]);
    if (!rows.length) return empty("None so far.");
    return bars(
      rows.slice(0, 8).map(([code, count]) => ({
        name: h("a", { href: `#/rollouts?reason=${encodeURIComponent(code)}` }, words(code)),
        value: count,
        colour: "--c2",
      })),
      { label: "Rejected rollouts by reason" },
    );
  });
}

function drawTasks({ tasks, boxes }, facts) {
  const rows = Object.entries(facts);
  tasks.hidden = rows.length < 2;
  if (tasks.hidden) return;
  once(boxes.tasks, facts, () =>
    table(
      "Tasks",
      ["task", "#reward", "#solved", "#tokens", "#flat groups"],
      rows.map(([name, one]) => [
        stranger(name),
        reward(one.reward_mean),
        percent(one.pass_rate),
        number(one.length_mean),
        percent(one.zero_advantage),
      ]),
    ),
  );
}
