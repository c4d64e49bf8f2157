"""What the hub and its learner process say to each other over their pipe (see echo_p2p.pipes)."""

from __future__ import annotations

import msgspec


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class Start(_Frame, frozen=True):
    """Load base and adapter. `config` is the RunConfig as JSON.

    `checkpoint` is a folder made by an earlier `Train`, or None to begin at version 0; version 0's
    own checkpoint is then written to `out`. `canary` are prompts that every version must answer.
    """

    config: str
    base: str
    checkpoint: str | None
    out: str
    canary: list[list[int]] = []


class Started(_Frame, frozen=True):
    """`batch`: numbers in the ledger of the groups that the last update was made from."""

    version: int
    trainable: int
    batch: list[int] = []


class TrainRollout(msgspec.Struct, frozen=True):
    """A scored answer: all tokens after the prompt, in order.

    `observed` are half-open spans [start, end) of `tokens` that the environment wrote, in order,
    none overlapping. Their log-probabilities mean nothing, and nothing of them is trained on.
    """

    tokens: list[int]
    logprobs: list[float]
    reward: float
    observed: list[tuple[int, int]] = []


class TrainGroup(msgspec.Struct, frozen=True):
    """A scored group. `version` is the policy that sampled it, `arm` the number of what its prompt
    was drawn from (see `Mixture`)."""

    version: int
    prompt: list[int]
    rollouts: list[TrainRollout]
    arm: int = 0


class Train(_Frame, frozen=True):
    """One update on these groups, from `version` to `version + 1`; its checkpoint goes to `out`.

    A checkpoint folder holds `adapter/`, a PEFT adapter folder, and the rest of the learner's
    state (see `checkpoint`); it appears whole or not at all. `batch` are the groups' numbers in the
    ledger. `blank`: rewards of the groups that the update leaves out, because their answers are all
    worth the same, and `blank_arms` what they are of; the guard counts them too. `forget`: it
    compares with nothing that was before.
    """

    version: int
    groups: list[TrainGroup]
    out: str
    batch: list[int] = []
    blank: list[list[float]] = []
    blank_arms: list[int] = []
    forget: bool = False


class RollBack(_Frame, frozen=True):
    """Take over an earlier checkpoint of the run as version `version + 1`, which goes to `out`."""

    version: int
    checkpoint: str
    out: str


class Trained(_Frame, frozen=True):
    version: int
    metrics: dict[str, float]


class AuditRollout(msgspec.Struct, frozen=True):
    """An answer as it was handed in; `observed` as in `TrainRollout`."""

    tokens: list[int]
    logprobs: list[float]
    observed: list[tuple[int, int]] = []


class Audit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One group to be derived again under the policy `version` whose adapter lies at `adapter`."""

    version: int
    adapter: str
    prompt: list[int]
    seed: int
    temperature: float
    rollouts: list[AuditRollout]
    top_k: int = 0
    top_p: float = 1.0


class Audits(_Frame, frozen=True):
    """Derive these groups again; the answer is an `AuditedAll`."""

    groups: list[Audit]


class Audited(_Frame, frozen=True):
    """Evidence of one group.

    `max_margin`: largest shortfall of a claimed token's perturbed logit from the best one.
    `max_logprob_difference`: largest |claimed - derived| log-probability.
    `mismatches`: tokens that are not the argmax; `tokens`: all tokens checked.
    `margins`, `differences`: how many exceed each of `audit.sequential.EDGES`. `chance`: sum of the
    probabilities that an independent draw would have given another token; `bits`: sampling entropy.
    """

    max_margin: float
    max_logprob_difference: float
    mismatches: int
    tokens: int
    margins: tuple[int, ...] = ()
    differences: tuple[int, ...] = ()
    chance: float = 0.0
    bits: float = 0.0


class Failed(_Frame, frozen=True):
    """The command could not be carried out; the learner's state is as before it.

    `settings`: run.toml is to blame. `message` and `fix` are as in `EchoError`, `why` and `back_to`
    as in `UpdateRefusedError` if it is one.
    """

    message: str
    fix: str = ""
    settings: bool = False
    why: str = ""
    back_to: int | None = None


class AuditedAll(_Frame, frozen=True):
    """One answer for each group: what it shows, or why it could not be derived."""

    answers: list[Audited | Failed]


Command = Start | Train | RollBack | Audits
Answer = Started | Trained | AuditedAll | Failed
