"""What a key has earned, how often its groups are audited, and when it is banned.

Pure: time and evidence come in as arguments. Let n be the valid groups of a key since its last
invalid one, and K = `audit.probation`. Its next group is audited with probability

    p = min(1, max(floor, K / n)):    all of a newcomer's groups, and of the first K;
                                      then 1 in 2 at 2 K, 1 in 10 at 10 K, down to `floor`.

An invalid group, or a lease that expired unanswered, puts n back to 0; a lease that is given back
takes away what a valid group earns, so that nobody can look at answers and hand in only those it
likes without being audited for ever. n halves with every `audit.half_life_days`. A false group
that no honest noise explains bans the key, and so does the sequential test over all it handed in.

Why a cheat does not pay. The groups of one key are decided in the order in which they came
(`InOrder`), so its false groups are trained on only until the first of them is audited; then the
key is banned, and all of its that waits is thrown away. From n on that is a geometric number, with
mean 1/p - 1 < n / K. Whatever its plan, a key so gets about 1 / K false groups trained on for
each honest group it had to do before; a new key starts at n = 0. If a share s of all groups comes
from colluding keys, less than s / K of what is trained on is false: with s = 0.3 and K = 400 that
is 0.075 %. (n as in BOINC, K = 1, lets colluders have half of their groups false.) The bound is
for cheats that an audit sees; what it does not see is bounded by how little it changes.

Invariants: a banned key stays banned until it is unbanned by hand, and has n = 0 then; a key
of which no group was ever audited takes no memory here.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from echo_hub.audit.sequential import FLOAT32, NodeEvidence, Noise
from echo_hub.config import AuditSection
from echo_hub.learner.messages import Audited
from echo_hub.rollouts.checks import Code

DAY_S = 86400.0

FAULTS = frozenset(
    {
        Code.BAD_ENVELOPE,
        Code.BAD_SIGNATURE,
        Code.WRONG_SIGNER,
        Code.FOREIGN_LEASE,
        Code.VERSION_OUT_OF_WINDOW,
        Code.UNPUBLISHED_VERSION,
        Code.WRONG_GROUP_SIZE,
        Code.BAD_TOKENS,
        Code.BAD_FINISH,
        Code.BAD_LOGPROBS,
        Code.BAD_OBSERVATION,
        Code.AUDIT_MARGIN,
        Code.AUDIT_LOGPROB,
    }
)
"""Codes that no node running this program honestly is rejected with."""


@dataclass(frozen=True)
class Record:
    """One key, as the ledger keeps it. `valid` is n at the time `at`; `banned` says why, if so."""

    valid: float = 0.0
    at: float = 0.0
    banned: str | None = None
    evidence: NodeEvidence = field(default_factory=NodeEvidence)


class Reputation:
    """The standing of every key of a run."""

    def __init__(
        self,
        rules: AuditSection,
        records: Iterable[tuple[bytes, Record]] = (),
        *,
        noise: Noise = FLOAT32,
    ) -> None:
        self._rules = rules
        self._noise = noise
        self._records = dict(records)
        self._changed: set[bytes] = set()

    # --- what is asked ------------------------------------------------------------------------

    def valid(self, node: bytes, now: float) -> float:
        """n: consecutive valid groups, decayed."""
        record = self._records.get(node)
        if record is None:
            return 0.0
        halvings = max(0.0, now - record.at) / (self._rules.half_life_days * DAY_S)
        return record.valid * math.exp2(-halvings)

    def proven(self, node: bytes, now: float) -> bool:
        """Has the key standing at all: a valid group since the last invalid one?"""
        return self.valid(node, now) >= 0.5

    def audit_probability(self, node: bytes, now: float) -> float:
        """How likely the next group of a key is to be audited."""
        rules = self._rules
        return min(1.0, max(rules.floor, rules.probation / max(1.0, self.valid(node, now))))

    def banned(self, node: bytes) -> str | None:
        """Why a key is banned; None if it is not."""
        record = self._records.get(node)
        return None if record is None else record.banned

    @property
    def bans(self) -> frozenset[bytes]:
        """All banned keys."""
        return frozenset(node for node, record in self._records.items() if record.banned)

    # --- what happened ------------------------------------------------------------------------

    def earned(self, node: bytes, now: float) -> None:
        """A group passed every check."""
        self._put(node, now, self.valid(node, now) + 1)

    def gave_back(self, node: bytes, leases: int, now: float) -> None:
        """Leases were returned unanswered."""
        if node in self._records:
            self._put(node, now, max(0.0, self.valid(node, now) - leases))

    def lost(self, node: bytes, now: float) -> None:
        """A group was invalid, or a lease expired unanswered."""
        if node in self._records:
            self._put(node, now, 0.0)

    def judge(self, node: bytes, found: Audited) -> str | None:
        """Add what an audit found to a key's evidence; why the key must be banned, if it must."""
        record = self._records.get(node, Record())
        evidence = record.evidence.update(found, self._noise)
        self._records[node] = replace(record, evidence=evidence)
        self._changed.add(node)
        rules = self._rules
        if not rules.ban:
            return None
        # written so that NaN is beyond doubt too
        if not (
            found.max_margin <= rules.max_margin * rules.beyond_doubt
            and found.max_logprob_difference <= rules.max_logprob_difference * rules.beyond_doubt
        ):
            return (
                f"{found.mismatches} of {found.tokens} tokens of one group are not those of the "
                f"claimed policy (margin up to {found.max_margin:.3g}, log-probability off by up "
                f"to {found.max_logprob_difference:.3g})."
            )
        if evidence.condemned:
            return (
                f"Over {evidence.tokens} audited tokens its work differs from that of the claimed "
                "policy more than numerical noise can explain."
            )
        return None

    def ban(self, node: bytes, now: float, why: str) -> Record:
        """Shut a key out."""
        self._put(node, now, 0.0)
        self._records[node] = replace(self._records[node], banned=why)
        return self._records[node]

    def unban(self, node: bytes) -> None:
        """Let a key in again, as a newcomer without a past."""
        if node in self._records:
            self._records[node] = Record()
            self._changed.add(node)

    def take_changed(self) -> list[tuple[bytes, Record]]:
        """The records that changed since the last call, for the ledger."""
        changed = [(node, self._records[node]) for node in self._changed]
        self._changed.clear()
        return changed

    def _put(self, node: bytes, now: float, valid: float) -> None:
        record = self._records.get(node, Record())
        self._records[node] = replace(record, valid=valid, at=now)
        self._changed.add(node)


T = TypeVar("T")


class InOrder(Generic[T]):
    """What was decided about the groups of each key, in the order in which they came.

    A group that is not audited so waits for those before it that are, and a cheat cannot have the
    rest of its groups trained on while the first is being looked at. Between `take` and `done`
    nothing else of the same key is given out.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, deque[int]] = defaultdict(deque)
        self._decided: dict[int, T] = {}

    def enter(self, node: bytes, group_id: int) -> None:
        """A group has come."""
        self._waiting[node].append(group_id)

    def decide(self, group_id: int, verdict: T) -> None:
        """A group is decided."""
        self._decided[group_id] = verdict

    def take(self, node: bytes) -> T | None:
        """The next verdict of a key, if there is one whose turn it is."""
        waiting = self._waiting.get(node)
        return self._decided.pop(waiting[0], None) if waiting else None

    def done(self, node: bytes) -> None:
        """What was taken has been carried out."""
        self._waiting[node].popleft()
        if not self._waiting[node]:
            del self._waiting[node]

    def waiting(self) -> dict[bytes, int]:
        """How many groups of each key are not done yet."""
        return {node: len(groups) for node, groups in self._waiting.items()}
