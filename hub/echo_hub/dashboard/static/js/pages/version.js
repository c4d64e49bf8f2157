/** One policy version: how it came about, how it spread, how it did, and what can be done with it. */

import { get, save, send } from "../api.js";
import { bars, card, empty, pill, stat, stats, table } from "../bits.js";
import { act, toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { bytes, number, percent, plural, reward, seconds, timeOf, words } from "../format.js";
import { stranger } from "../hostile.js";
import { live } from "../live.js";

/** What is special about a version. */
export function marks(row, newest) {
  return [
    row.version === newest ? pill("good", "newest") : null,
    row.rolled_back_to !== null ? pill("warn", `back to v${row.rolled_back_to}`) : null,
    row.withdrawn ? pill("bad", "withdrawn") : null,
    row.pinned ? pill("info", "pinned") : null,
  ];
}

/** Show a version by its number. */
export async function showVersion(root, version, { signal }) {
  const path = `/versions/${version}`;
  const title = h("h1", {}, `Version ${version}`);
  const buttons = h("div.buttons");
  const body = h("div.cards");
  root.append(
    h("p.crumbs", {}, h("a", { href: "#/versions" }, "Versions"), ` / v${version}`),
    h("div.page-head", {}, title, buttons),
    body,
  );
  const reload = async () => draw(await get(path, {}, { signal }));
  const draw = (facts) => {
    fill(title, `Version ${version} `, marks(facts, live.overview?.version));
    fill(buttons, actions(facts, path, reload));
    fill(body, made(facts), spreadCard(facts), evaluation(facts), metricsCard(facts));
  };
  await reload();
}

function made(facts) {
  const lags = Object.entries(facts.lags);
  return card(
    "Facts",
    {},
    stats(
      stat("Made", h("span", {}, timeOf(facts.at, { both: true }))),
      stat(
        "Published",
        facts.published_at === null
          ? "no"
          : h("span", {}, timeOf(facts.published_at, { both: true })),
      ),
      stat("Reward", reward(facts.reward)),
      stat("From", plural(facts.groups, "group")),
      stat("Size", bytes(facts.size)),
      stat(
        "Delta",
        bytes(facts.delta_size),
        facts.delta_ratio === null ? null : percent(facts.delta_ratio),
      ),
      stat(
        "Checkpoint",
        facts.kept ? "on disk" : "no longer on disk",
        facts.pinned ? "pinned" : null,
      ),
    ),
    lags.length
      ? [
          h("h3", {}, "Lag of its groups"),
          bars(
            lags.map(([lag, count]) => ({ name: lag, value: count })),
            { label: "Groups by lag" },
          ),
        ]
      : null,
  );
}

function spreadCard({ spread }) {
  if (!spread)
    return card(
      "Dissemination",
      {},
      empty(
        "It was not published.",
        "Every kappa-th version is; Publish sends the newest at once.",
      ),
    );
  const steps = [
    ["half of the nodes", spread.half_s],
    ["nine tenths", spread.nine_tenths_s],
    ["the last", spread.last_s],
  ];
  return card(
    "Dissemination",
    { note: `${number(spread.nodes_reached)} of ${plural(spread.nodes_in_session, "node")}` },
    bars(
      steps.map(([name, value]) => ({
        name,
        value: value ?? 0,
        text: seconds(value),
        colour: "--c3",
      })),
      { label: "Seconds until nodes had it" },
    ),
    stats(
      stat("Sent by the hub", bytes(spread.hub_bytes)),
      stat("Sent by peers", bytes(spread.peer_bytes), percent(spread.peer_share)),
      stat("Fetched in all by", plural(spread.nodes, "node")),
    ),
  );
}

function evaluation({ heldout, heldout_tasks: tasks }) {
  if (!heldout)
    return card(
      "Evaluation",
      {},
      empty("This version was not evaluated.", "evaluation.every in run.toml says which are."),
    );
  const row = (name, one) => [
    stranger(name),
    reward(one.reward),
    `${reward(one.low)} to ${reward(one.high)}`,
    number(one.prompts),
  ];
  return card(
    "Evaluation",
    { note: "held-out prompts" },
    table(
      "Held-out reward",
      ["task", "#reward", "#95 % interval", "#prompts"],
      [
        row("all", heldout),
        ...(Object.keys(tasks).length > 1
          ? Object.entries(tasks).map(([name, one]) => row(name, one))
          : []),
      ],
    ),
  );
}

function metricsCard({ metrics }) {
  const rows = Object.entries(metrics);
  return card(
    "Metrics of its update",
    { wide: true },
    rows.length
      ? h(
          "dl.metrics",
          {},
          rows.map(([name, value]) =>
            h("div", {}, h("dt", {}, stranger(words(name), 60)), h("dd", {}, number(value))),
          ),
        )
      : empty("Its update has none."),
  );
}

function actions(facts, path, reload) {
  const { version } = facts;
  const exported = async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    try {
      await save(`${path}/export`);
      toast(`Version ${version} was exported.`);
    } catch (error) {
      toast(`${error.message} ${error.fix ?? ""}`, "bad");
    }
    button.disabled = false;
  };
  const newest = live.overview?.version;
  const button = (text, id, question, doing, { kind = "", able = facts.kept } = {}) =>
    h(
      `button${kind}`,
      {
        type: "button",
        id,
        disabled: !able,
        title: able ? null : "its checkpoint is no longer on disk, or it was never published",
        onclick: () => act(question, doing, () => reload()),
      },
      text,
    );
  const merged = `/api/v1${path}/export?form=merged`;
  return [
    facts.kept
      ? h("button", { type: "button", id: "export", onclick: exported }, "Export (PEFT)")
      : null,
    facts.kept ? h("a.button", { href: merged, download: "" }, "Export merged") : null,
    facts.pinned
      ? button(
          "Unpin",
          "unpin",
          {
            title: `Unpin version ${version}?`,
            confirm: "Unpin",
            consequences: [
              "Its checkpoint is deleted when its turn comes (learner.keep_checkpoints).",
            ],
          },
          () => send("POST", `${path}/unpin`),
        )
      : button(
          "Pin",
          "pin",
          {
            title: `Pin version ${version}?`,
            confirm: "Pin",
            consequences: [
              `Its checkpoint stays on disk until you unpin it${facts.size ? ` (adapter ${bytes(facts.size)}, and the optimiser's state)` : ""}.`,
            ],
          },
          () => send("POST", `${path}/pin`),
        ),
    version === newest
      ? null
      : button(
          "Roll back to this",
          "rollback",
          {
            title: `Roll back to version ${version}?`,
            confirm: `Roll back to v${version}`,
            danger: true,
            consequences: [
              `The learner takes the weights and the optimiser's state of version ${version}; the updates after it (v${version + 1} to v${newest ?? "newest"}) are undone.`,
              "This makes a new version with these weights: numbers only go up, and nodes fetch it as any other.",
              "Rollouts of the versions that are undone are not trained on.",
            ],
          },
          () => send("POST", `${path}/rollback`),
          { kind: ".danger", able: facts.kept && facts.published_at !== null },
        ),
  ];
}
