/** What the learner's metrics are: how they are grouped, what each means, its unit. docs/learner.md. */

import { number, percent, reward, seconds } from "./format.js";

const share = { show: (value) => percent(value, 1), axis: (value) => percent(value), unit: "%" };
const nats = { unit: "nats a token" };

/** By name: `{means, show, unit}`; one that is not here is shown as a plain number. */
export const KNOWN = {
  __proto__: null, // a name from outside finds nothing that is not here
  reward_mean: { means: "mean reward of the update's rollouts", show: reward },
  reward_error: { means: "standard error of the mean, over groups", show: reward },
  reward_std: { means: "their standard deviation", show: reward },
  zero_advantage_groups: {
    means: "groups whose answers all got the same reward: they teach nothing",
    unit: "groups",
  },
  lag_mean: { means: "mean lag of its rollouts", unit: "versions" },
  lag_max: { means: "greatest lag of its rollouts; never over S", unit: "versions" },
  loss: { means: "what was minimised" },
  policy_loss: { means: "the part of the loss that is the policy's" },
  value_loss: { means: "the value head's error" },
  entropy: { means: "entropy of the policy's next token", ...nats },
  grad_norm: { means: "norm of the gradient before clipping" },
  grad_cosine: { means: "cosine to the gradient before: high for stale rollouts" },
  learning_rate: { means: "step size" },
  clip_fraction: { means: "ratios outside the clip range", ...share },
  kl: { means: "KL of the nodes' policy from the learner's", ...nats },
  kl_reference: { means: "KL from the reference policy", ...nats },
  ratio_mean: { means: "mean ratio learner over node; 1 if they agree" },
  ratio_max: { means: "greatest ratio" },
  ess: { means: "effective sample size as a share of tokens; 1 when all weigh the same", ...share },
  mismatch_kl: { means: "KL between a node's arithmetic and the learner's at lag 0", ...nats },
  mismatch_mean: { means: "mean difference of log-probabilities at lag 0", unit: "nats" },
  mismatch_max: { means: "greatest difference at lag 0", unit: "nats" },
  tokens: { means: "tokens of the update", unit: "tokens" },
  trained_rollouts: { means: "rollouts with an advantage", unit: "rollouts" },
  padding: { means: "computed in vain", ...share },
  lag0_tokens: { means: "tokens of lag 0, that a mismatch is measured on", unit: "tokens" },
  good_version: { means: "last version that the guard calls good", unit: "version" },
  waited_seconds: { means: "waited for groups", show: seconds, axis: seconds, unit: "s" },
  pass_rate: { means: "answers that are right", ...share },
  length_mean: { means: "mean length of an answer", unit: "tokens" },
  zero_advantage: { means: "groups whose answers all got the same reward", ...share },
  groups: { means: "groups scored since the update before", unit: "groups" },
  seconds: { means: "time of the update", show: seconds, axis: seconds, unit: "s" },
  period_s: { means: "from update to update", show: seconds, axis: seconds, unit: "s" },
  waited_s: { means: "waited for groups", show: seconds, axis: seconds, unit: "s" },
  train_s: { means: "of training", show: seconds, axis: seconds, unit: "s" },
};

const GROUPS = [
  ["Reward", /^(reward|zero_advantage|pass_rate|length)/],
  ["Staleness", /^(lag_|mismatch|ratio|ess$|kl$|clip_fraction|age|truncat)/],
  ["Objective", /^(loss|policy_loss|value|entropy|kl_|penalty)/],
  ["Step", /^(grad|learning_rate|clip|good_version|rolled_back|adam|weight|update)/],
  [
    "Work and time",
    /^(tokens|trained|padding|lag0|waited|seconds|period_s|waited_s|train_s|auditing|training|rollouts|groups)/,
  ],
];

/** Names by group, in a fixed order: `[[title, [names]]]`; those of tasks each under their task. */
export function grouped(names) {
  const found = new Map(GROUPS.map(([title]) => [title, []]));
  for (const name of names) {
    const task = /^task\.(.+)\.([^.]+)$/.exec(name);
    const title = task
      ? `Task ${task[1]}`
      : (GROUPS.find(([, pattern]) => pattern.test(name))?.[0] ?? "Other");
    if (!found.has(title)) found.set(title, []);
    found.get(title).push(name);
  }
  return [...found]
    .filter(([, list]) => list.length)
    .map(([title, list]) => [title, list.sort(byKnown)]);
}

const ORDER = Object.keys(KNOWN);
function byKnown(a, b) {
  const [x, y] = [ORDER.indexOf(a), ORDER.indexOf(b)];
  return (x < 0 ? 1e6 : x) - (y < 0 ? 1e6 : y) || (a < b ? -1 : 1);
}

export function shown(name) {
  const last = name.split(".").at(-1);
  return { means: "", show: number, axis: number, unit: "", ...(KNOWN[name] ?? KNOWN[last] ?? {}) };
}
