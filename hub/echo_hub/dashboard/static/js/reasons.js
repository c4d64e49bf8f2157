/** What codes, standings and states mean, in words. Reason codes: docs/protocol.md. */

export const STANDING = {
  __proto__: null, // a name from outside finds nothing that is not here
  proven: {
    kind: "good",
    text: "proven",
    means: "It has valid groups since its last invalid one; part of its groups are audited.",
  },
  newcomer: { kind: "wait", text: "newcomer", means: "All of its groups are audited." },
  quarantined: {
    kind: "warn",
    text: "quarantined",
    means:
      "It works on; all of its groups are audited, and none is trained on, until you release it.",
  },
  banned: {
    kind: "bad",
    text: "banned",
    means: "It is refused, and what it had handed in was thrown away.",
  },
};

export const GROUP = {
  __proto__: null, // a name from outside finds nothing that is not here
  received: { kind: "wait", text: "being checked" },
  scored: { kind: "info", text: "buffered" },
  consumed: { kind: "good", text: "trained on" },
  dropped: { kind: "bad", text: "dropped" },
};

/** Codes that no node running the program honestly is rejected with. */
export const FAULTS = new Set([
  "bad_envelope",
  "bad_signature",
  "wrong_signer",
  "foreign_lease",
  "version_out_of_window",
  "unpublished_version",
  "wrong_group_size",
  "bad_tokens",
  "bad_finish",
  "bad_logprobs",
  "bad_observation",
  "audit_margin",
  "audit_logprob",
]);

/** What an operator may do about rollouts that are rejected with a code. */
export const ADVICE = {
  __proto__: null, // a name from outside finds nothing that is not here
  stale: "Faster nodes or links, fewer answers at a time, or a greater S (learner.staleness).",
  expired_lease:
    "The node is too slow for lease.seconds, or it went away. Raise lease.seconds, or let it take fewer answers at a time.",
  audit_margin:
    "A token that its policy would not have drawn: a cheat, other weights, or a quantised model. `echo-hub calibrate` if honest nodes of one kind show it.",
  audit_logprob: "Log-probabilities of another policy. As for audit margin.",
  score_failed:
    "The task's reward failed or took too long (scoring.timeout_s); the hub's log has its error.",
  learner_refused: "The guard refused the update; look at Events.",
  bad_logprobs: "The node's engine is damaged, or it makes its numbers up.",
  withdrawn: "The run went back to an earlier version; nothing is to be done.",
};
