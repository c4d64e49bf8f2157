/**
 * One answer, token by token, coloured by the probability that the policy gave each. The text is
 * the adversary's: pieces become text nodes, odd characters are shown, not obeyed.
 */

import { h } from "../dom.js";
import { number, percent, plural, reward, words } from "../format.js";
import { visible } from "../hostile.js";

const MOST_TOKENS = 8192;
const LONGEST_PIECE = 200;
/** Lower bounds of the probability classes: certain ones are left plain. */
const CLASSES = [0.9, 0.5, 0.2, 0.05, 0];

function classOf(logprob) {
  const p = Math.exp(Math.min(0, logprob));
  const at = CLASSES.findIndex((least) => p >= least);
  return at < 0 ? CLASSES.length - 1 : at;
}

/** What the colours mean. */
export function probabilityKey() {
  const names = ["over 90 %", "50–90 %", "20–50 %", "5–20 %", "under 5 %"];
  return h(
    "ul.token-key",
    { "aria-label": "Colours of tokens by probability" },
    names.map((name, at) => h("li", {}, h(`span.token.p${at}`, {}, name))),
  );
}

/** An answer with its reward and advantage. */
export function transcript(rollout, count) {
  const { tokens, logprobs } = rollout;
  const from = new Set();
  for (const [start, end] of rollout.observed) for (let at = start; at < end; at += 1) from.add(at);
  const pieces = tokens.slice(0, MOST_TOKENS).map((piece, at) => {
    if (from.has(at))
      return h(
        "span.token.observed",
        { title: "written by the environment" },
        visible(piece, LONGEST_PIECE),
      );
    const value = logprobs[at];
    const known = typeof value === "number";
    return h(
      `span.token${known ? `.p${classOf(value)}` : ""}`,
      {
        title: known ? `${percent(Math.exp(value), 1)}, log-probability ${value.toFixed(3)}` : null,
      },
      visible(piece, LONGEST_PIECE),
    );
  });
  const rest = tokens.length - pieces.length;
  const own = logprobs.filter((value, at) => typeof value === "number" && !from.has(at));
  const mean = own.length ? own.reduce((sum, one) => sum + one, 0) / own.length : null;
  const kind =
    rollout.advantage === null
      ? ""
      : rollout.advantage > 0
        ? ".up"
        : rollout.advantage < 0
          ? ".down"
          : "";
  return h(
    `article.answer-text${kind}`,
    { "aria-label": `Answer ${rollout.at + 1} of ${count}` },
    h(
      "header",
      {},
      h("h3", {}, `Answer ${rollout.at + 1}`),
      h("span", {}, "reward ", h("b", {}, reward(rollout.reward))),
      h(
        "span",
        {},
        "advantage ",
        h(
          "b",
          {},
          rollout.advantage === null
            ? "–"
            : `${rollout.advantage > 0 ? "+" : ""}${number(rollout.advantage)}`,
        ),
      ),
      h("span.muted", {}, plural(tokens.length, "token")),
      h("span.muted", {}, `ends by ${words(rollout.finish)}`),
      mean === null
        ? null
        : h("span.muted", {}, `mean log-probability ${number(Number(mean.toFixed(2)))} nats`),
    ),
    h(
      "div.transcript",
      { tabindex: 0, role: "region", "aria-label": `Text of answer ${rollout.at + 1}` },
      pieces.length ? pieces : visible(rollout.text, 20_000),
      rest > 0 ? h("span.cut", {}, `… ${number(rest)} more tokens`) : null,
    ),
  );
}
