/**
 * The overview's answers: is it learning, is it healthy, what limits it? Pure: an overview in, and
 * out of each `{kind: "good" | "warn" | "bad" | "wait", word, sentence}`.
 *
 * Two means differ if their distance is over 1.96 standard errors; a 95 % band (low, high) has a
 * standard error of (high - low) / 3.92.
 */

import { number, percent, plural, reward, seconds, words } from "./format.js";

const ENOUGH = 6; // updates, before anything is said of a trend
const WINDOW = 20; // updates compared with as many before them
const MANY_REJECTED = 0.1;

/** -1, 0 or 1: is the mean of `later` points under, not clearly off, or over that of `earlier`? */
export function direction(earlier, later) {
  const [a, b] = [summary(earlier), summary(later)];
  const apart = b.mean - a.mean;
  return Math.abs(apart) > 1.96 * Math.hypot(a.error, b.error) && apart !== 0
    ? Math.sign(apart)
    : 0;
}

function summary(points) {
  const count = points.length;
  const mean = points.reduce((sum, one) => sum + one.mean, 0) / count;
  const variance = points.reduce((sum, one) => sum + ((one.high - one.low) / 3.92) ** 2, 0);
  return { mean, error: Math.sqrt(variance) / count };
}

const asPoint = (one) => ({ mean: one.reward, low: one.low, high: one.high });

/** Is it learning? */
export function learning({ reward: facts }) {
  const { updates, heldout } = facts;
  if (!updates.length && heldout.length < 2) {
    return {
      kind: "wait",
      word: "Not yet",
      sentence: heldout.length
        ? `Held-out reward before the first update: ${reward(heldout[0].reward)}.`
        : "No update was made yet.",
    };
  }
  const late = trend(updates);
  if (heldout.length >= 2) {
    const [first, last] = [heldout[0], heldout.at(-1)];
    const way = direction([asPoint(first)], [asPoint(last)]);
    const from = `Held-out reward ${reward(first.reward)} at v${first.version}, ${reward(last.reward)} at v${last.version}.`;
    if (way > 0)
      return {
        kind: late.way < 0 ? "warn" : "good",
        word: late.way < 0 ? "It did" : "Yes",
        sentence: `${from} ${late.sentence}`,
      };
    if (way < 0) return { kind: "bad", word: "It got worse", sentence: `${from} ${late.sentence}` };
    return {
      kind: late.way > 0 ? "good" : late.way < 0 ? "bad" : "warn",
      word: late.way > 0 ? "It begins to" : late.way < 0 ? "It gets worse" : "Not clearly",
      sentence: `${from} ${late.sentence}`,
    };
  }
  if (updates.length < ENOUGH) {
    return {
      kind: "wait",
      word: "Too early",
      sentence: `${plural(updates.length, "update")} so far; reward ${reward(updates.at(-1).mean)}.`,
    };
  }
  const part = Math.max(3, Math.floor(updates.length / 5));
  const [first, last] = [updates.slice(0, part), updates.slice(-part)];
  const way = direction(first, last);
  const from = `Reward ${reward(summary(first).mean)} at first, ${reward(summary(last).mean)} now.`;
  return {
    kind: way > 0 ? "good" : way < 0 ? "bad" : "warn",
    word: way > 0 ? "Yes" : way < 0 ? "It got worse" : "Not clearly",
    sentence: `${from} ${late.sentence}`,
  };
}

function trend(updates) {
  const span = Math.min(WINDOW, Math.floor(updates.length / 2));
  if (span < 3) return { way: 0, sentence: "" };
  const way = direction(updates.slice(-2 * span, -span), updates.slice(-span));
  const what = way > 0 ? "rises" : way < 0 ? "falls" : "is level";
  return { way, sentence: `Over the last ${2 * span} updates it ${what}.` };
}

/** Is it healthy? */
export function health(overview) {
  const alerts = overview.alerts.filter((one) => one.active);
  const { counts, lag, rates } = overview;
  if (overview.paused) return { kind: "bad", word: "Paused", sentence: overview.paused.why };
  if (alerts.length) {
    const more = alerts.length > 1 ? ` And ${plural(alerts.length - 1, "more alert")}.` : "";
    return {
      kind: "bad",
      word: plural(alerts.length, "alert"),
      sentence: alerts[0].sentence + more,
    };
  }
  if (rates.rejected > MANY_REJECTED) {
    const [code] = Object.entries(counts.rollouts_rejected).sort((a, b) => b[1] - a[1])[0] ?? ["?"];
    return {
      kind: "warn",
      word: "Many rejections",
      sentence: `${percent(rates.rejected)} of the last rollouts were rejected, most as “${words(code)}”.`,
    };
  }
  if (!counts.nodes_in_session && !overview.complete) {
    return {
      kind: "warn",
      word: "No nodes",
      sentence: "No node is in session. Hand volunteers the file bootstrap_peers.toml.",
    };
  }
  const late =
    lag.last_max === null ? "" : `, lag at most ${number(lag.last_max)} of S = ${lag.staleness}`;
  return {
    kind: "good",
    word: "Yes",
    sentence: `No alert; ${plural(counts.nodes_in_session, "node")} in session, ${percent(rates.rejected, 1)} rejected of late${late}.`,
  };
}

const CALM = new Set(["none", "complete", "learner"]);

/** What limits it? */
export function limits({ bottleneck }) {
  const kind = CALM.has(bottleneck.limit)
    ? "good"
    : bottleneck.limit === "starting"
      ? "wait"
      : "warn";
  const word =
    {
      none: "Nothing",
      complete: "Complete",
      learner: "The learner",
      nodes: "Nodes",
      starting: "Starting",
    }[bottleneck.limit] ?? `${bottleneck.limit[0].toUpperCase()}${bottleneck.limit.slice(1)}`;
  return { kind, word, sentence: bottleneck.sentence, fix: bottleneck.fix };
}

/** What the run does now, in a word. */
function state(overview) {
  if (overview.paused) return { kind: "pause", word: "paused" };
  if (overview.complete) return { kind: "good", word: "complete" };
  const { doing, for_s: length } = overview.learner;
  return {
    kind: doing.startsWith("wait") ? "wait" : "good",
    word: length >= 10 ? `${doing} for ${seconds(length)}` : doing,
  };
}

export const explain = { learning, health, limits, state };
