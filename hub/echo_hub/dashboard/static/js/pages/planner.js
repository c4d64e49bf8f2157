/** The capacity rule with what is measured now, beside what happens. */

import { get } from "../api.js";
import { card, empty, heading, pill, stat, stats, table } from "../bits.js";
import { fill, h } from "../dom.js";
import { number, percent, seconds, shortPeer, words } from "../format.js";
import { visible, visibleText } from "../hostile.js";
import { live } from "../live.js";

const EVERY_MS = 5000;
const CLOSE = 0.1; // of the greater one

const WRITTEN = {
  __proto__: null, // a name from outside finds nothing that is not here
  s: seconds,
  seconds,
  share: (value) => percent(value, 1),
  "%": (value) => percent(value, 1),
};

export async function show(root, { signal }) {
  const body = h("div");
  root.append(heading("Planner", h("span.note", {}, "predicted against measured")), body);
  const reload = async () => draw(body, await get("/planner", {}, { signal }));
  const timer = setInterval(() => document.hidden || reload().catch(() => {}), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  live.on("resync", () => reload().catch(() => {}), signal);
  await reload();
}

function draw(body, facts) {
  const chosen = facts.activation ? placing(facts.activation) : null;
  if (!facts.ready) {
    fill(
      body,
      chosen,
      empty(
        facts.sentence || "Not enough was measured yet.",
        "The rule needs a few updates and a published version.",
      ),
    );
    return;
  }
  const enough = facts.nodes_needed !== null && facts.nodes >= facts.nodes_needed;
  fill(
    body,
    h(
      "div.cards",
      {},
      card(
        "The answer now",
        {},
        h("p.lead", {}, facts.sentence),
        stats(
          stat("Nodes in session", number(facts.nodes)),
          stat("Nodes needed", number(facts.nodes_needed), "of their mean rate"),
          stat("Limit", words(facts.limit)),
        ),
        pill(enough ? "good" : "warn", enough ? "enough nodes" : "too few nodes"),
        h(
          "p.muted",
          {},
          "How many of which kind to add, and what it costs: ",
          h("code", {}, "echo-hub plan"),
          ".",
        ),
      ),
      card(
        "Predicted against measured",
        { wide: true },
        table(
          "Predicted against measured",
          ["quantity", "#predicted", "#measured", "#off by", "unit"],
          facts.compared.map(row),
        ),
        h(
          "p.muted",
          {},
          "Predicted by the closed rule from the rates and times measured now; measured over the last updates.",
        ),
      ),
      chosen,
    ),
  );
}

const STATES = {
  __proto__: null,
  working: "good",
  trial: "plain",
  standby: "plain",
  "too slow": "warn",
};

function placing(found) {
  return card(
    "Who works",
    { wide: true },
    h("p.lead", {}, visible(found.sentence, 500)),
    stats(
      stat("At work", number(found.active), found.on_trial ? `${found.on_trial} being measured` : ""),
      stat("On standby", number(found.standby)),
      stat("Rate", number(found.rate), `of ${number(found.needed)} needed, rollouts/s`),
      stat("Money", number(found.money), "an hour"),
    ),
    pill(found.missing ? "warn" : "good", found.missing ? "not enough" : "enough"),
    found.missing ? h("p", {}, "Missing: ", visible(found.missing, 500)) : null,
    found.wish ? h("p", {}, "Asked for ", visible(`${found.wish} ${found.outcome}`, 500)) : null,
    found.trouble ? h("p.off", {}, visible(found.trouble, 500)) : null,
    table(
      "Nodes by what they do",
      ["node", "state", "#rollouts/s", "#price an hour", "#for", "#turn in"],
      found.nodes.map((one) => [
        h("a.peer", { href: `#/nodes/${encodeURIComponent(one.node)}` }, shortPeer(one.node)),
        pill(STATES[one.state] ?? "plain", visibleText(one.state, 20)),
        one.rate ? number(one.rate) : "–",
        one.price ? number(one.price) : "volunteer",
        one.since_s === null ? "–" : seconds(one.since_s),
        one.turn_s === null ? "–" : seconds(one.turn_s),
      ]),
    ),
    h(
      "p.muted",
      {},
      found.mode === "on"
        ? "The cheapest rates that keep the learner busy work; the others stand by."
        : "Advice: in truth all nodes work. In run.toml, [activation] mode = \"on\" acts by it.",
    ),
  );
}

function row({ name, unit, predicted, measured }) {
  const write = WRITTEN[unit] ?? number;
  const known = predicted !== null && measured !== null;
  const off = known
    ? (predicted - measured) / Math.max(Math.abs(predicted), Math.abs(measured), 1e-12)
    : null;
  const cell =
    off === null
      ? "–"
      : h(
          "span",
          { class: Math.abs(off) > CLOSE ? "off" : "" },
          `${off > 0 ? "+" : ""}${percent(off)}`.replace("-", "−"),
        );
  return [words(name), write(predicted), write(measured), cell, unit];
}
