"""Standing, audits and bans; and a simulation in which a third of the nodes collude."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.audit.sequential import EDGES, NodeEvidence
from echo_hub.config import AuditSection
from echo_hub.learner.messages import Audited
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.reputation import DAY_S, FAULTS, InOrder, Record, Reputation

NODE, OTHER = b"n" * 32, b"o" * 32
RULES = AuditSection()
CLEAN = Audited(max_margin=0.0, max_logprob_difference=0.0, mismatches=0, tokens=10)
FALSE = Audited(max_margin=3.0, max_logprob_difference=0.0, mismatches=4, tokens=10)


def with_valid(count: int, rules: AuditSection = RULES) -> Reputation:
    return Reputation(rules, [(NODE, Record(valid=count))])


def test_a_newcomer_is_always_audited_then_less_and_never_under_the_floor() -> None:
    def audits(valid: int) -> float:
        return with_valid(valid).audit_probability(NODE, 0.0)

    k = RULES.probation
    assert Reputation(RULES).audit_probability(NODE, 0.0) == 1.0
    assert [audits(0), audits(1), audits(k)] == [1.0, 1.0, 1.0]
    assert audits(2 * k) == pytest.approx(0.5)
    assert audits(10 * k) == pytest.approx(0.1)
    assert audits(10**6 * k) == RULES.floor


def test_with_a_probation_of_one_it_is_one_in_n() -> None:
    rules = RULES.model_copy(update={"probation": 1})
    for n in (1, 2, 7, 19):
        assert with_valid(n, rules).audit_probability(NODE, 0.0) == pytest.approx(1 / n)


def test_one_invalid_group_puts_a_node_back_to_the_start() -> None:
    reputation = with_valid(5000)
    reputation.lost(NODE, 1.0)
    assert reputation.audit_probability(NODE, 1.0) == 1.0
    assert not reputation.proven(NODE, 1.0)
    reputation.earned(NODE, 1.0)
    assert reputation.proven(NODE, 1.0)


def test_a_lease_given_back_takes_what_a_valid_group_earns() -> None:
    reputation = Reputation(RULES)
    for _ in range(10):
        reputation.earned(NODE, 0.0)
        reputation.gave_back(NODE, 1, 0.0)
    assert reputation.valid(NODE, 0.0) == 0.0
    reputation.gave_back(OTHER, 100, 0.0)
    assert reputation.take_changed()[0][0] == NODE  # and nothing is kept of a stranger
    assert reputation.take_changed() == []


def test_standing_decays() -> None:
    reputation = with_valid(1000)
    half = RULES.half_life_days * DAY_S
    assert reputation.valid(NODE, half) == pytest.approx(500)
    assert reputation.valid(NODE, 2 * half) == pytest.approx(250)
    reputation.earned(NODE, half)
    assert reputation.valid(NODE, 2 * half) == pytest.approx(250.5)
    assert reputation.valid(NODE, 0.0) == pytest.approx(501)  # a clock set back adds nothing


def test_fraud_beyond_doubt_bans_and_what_may_be_noise_does_not() -> None:
    reputation = with_valid(5000)
    assert reputation.judge(NODE, CLEAN) is None
    limit = RULES.max_margin * RULES.beyond_doubt
    for found in (
        Audited(max_margin=limit, max_logprob_difference=0.0, mismatches=1, tokens=9),
        Audited(max_margin=0.0, max_logprob_difference=0.05, mismatches=0, tokens=9),
    ):
        assert reputation.judge(NODE, found) is None
    for found in (
        FALSE,
        Audited(max_margin=0.0, max_logprob_difference=0.5, mismatches=0, tokens=9),
        Audited(max_margin=math.nan, max_logprob_difference=0.0, mismatches=0, tokens=9),
        Audited(max_margin=0.0, max_logprob_difference=math.nan, mismatches=0, tokens=9),
    ):
        assert reputation.judge(NODE, found)
    assert with_valid(0, RULES.model_copy(update={"ban": False})).judge(NODE, FALSE) is None


def test_the_sequential_test_bans_who_is_never_beyond_doubt() -> None:
    reputation = with_valid(5000)
    margins = tuple(2 if edge < 0.02 else 0 for edge in EDGES)
    odd = Audited(
        max_margin=0.015, max_logprob_difference=0.0, mismatches=2, tokens=200, margins=margins,
        differences=(0,) * len(EDGES), chance=40.0, bits=60.0,
    )  # fmt: skip
    verdicts = [reputation.judge(NODE, odd) for _ in range(50)]
    assert verdicts[0] is None
    assert "more than numerical noise" in str(verdicts[-1])


def test_a_ban_holds_until_it_is_taken_back_and_then_nothing_is_left() -> None:
    reputation = with_valid(5000)
    record = reputation.ban(NODE, 1.0, "a reason")
    assert record.banned == "a reason"
    assert (reputation.banned(NODE), reputation.banned(OTHER)) == ("a reason", None)
    assert reputation.bans == {NODE}
    assert reputation.valid(NODE, 1.0) == 0.0
    again = Reputation(RULES, reputation.take_changed())
    assert again.banned(NODE) == "a reason"
    again.unban(NODE)
    assert again.banned(NODE) is None
    assert again.take_changed() == [(NODE, Record())]
    again.unban(OTHER)
    assert again.take_changed() == []


def test_evidence_outlives_a_restart() -> None:
    reputation = Reputation(RULES)
    found = Audited(
        max_margin=0.0, max_logprob_difference=0.0, mismatches=0, tokens=50,
        margins=(0,) * len(EDGES), differences=(0,) * len(EDGES), chance=9.0, bits=12.0,
    )  # fmt: skip
    reputation.judge(NODE, found)
    ((_, record),) = reputation.take_changed()
    assert record.evidence == NodeEvidence().update(found)


def test_what_an_honest_program_can_meet_is_no_fault() -> None:
    innocent = set(Code) - FAULTS
    for code in ("accepted", "stale", "duplicate", "expired_lease", "score_failed", "not_audited",
                 "learner_refused", "interrupted", "unknown_lease", "wrong_run"):  # fmt: skip
        assert Code(code) in innocent


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.randoms())
def test_groups_of_a_key_are_settled_in_the_order_they_came(
    events: list[tuple[int, bool]], rng: random.Random
) -> None:
    queue, came, out = InOrder[tuple[bytes, int]](), [], []
    undecided: list[tuple[bytes, int]] = []

    def decide_one() -> None:
        node, number = undecided.pop(rng.randrange(len(undecided)))
        queue.decide(number, (node, number))
        while (ready := queue.take(node)) is not None:
            assert queue.take(node) is None  # one at a time
            out.append(ready)
            queue.done(node)

    for number, (who, decides) in enumerate(events):
        node = bytes([who])
        queue.enter(node, number)
        came.append((node, number))
        undecided.append((node, number))
        if decides:
            decide_one()
    while undecided:
        decide_one()
    for who in range(3):
        assert [x for x in out if x[0] == bytes([who])] == [x for x in came if x[0] == bytes([who])]
    assert queue.waiting() == {}


# --- the simulation -----------------------------------------------------------------------------


@dataclass
class Colluder:
    """Works honestly for `patience` groups, then cheats until it is banned, and comes again."""

    name: int
    patience: int
    lives: int = 0
    done: int = 0

    @property
    def key(self) -> bytes:
        return self.name.to_bytes(16, "big") + self.lives.to_bytes(16, "big")

    def cheats(self) -> bool:
        self.done += 1
        return self.done > self.patience

    def rejoin(self) -> None:
        self.lives += 1
        self.done = 0


def share_of_false(
    rules: AuditSection, patience: int, *, batches: int, seed: int, batch: int = 32
) -> float:
    """Share of false groups in what is trained on, when 30 of 100 nodes collude.

    Each round, every node hands in one group. What is not audited, or passes, is trained on with
    the next batch; a ban takes out what waits of the key.
    """
    rng = random.Random(seed)
    reputation = Reputation(rules)
    honest = [number.to_bytes(32, "big") for number in range(1000, 1070)]
    colluders = [Colluder(number, patience) for number in range(1, 31)]
    waiting: list[tuple[bytes, bool]] = []
    trained = false = 0
    while trained < batches * batch:
        turn = [(key, None) for key in honest] + [(one.key, one) for one in colluders]
        rng.shuffle(turn)
        for key, colluder in turn:
            lie = colluder is not None and colluder.cheats()
            if rng.random() < reputation.audit_probability(key, 0.0):
                why = reputation.judge(key, FALSE if lie else CLEAN)
                if why is not None:
                    reputation.ban(key, 0.0, why)
                    waiting = [one for one in waiting if one[0] != key]
                    assert colluder is not None
                    colluder.rejoin()
                    continue
            reputation.earned(key, 0.0)
            waiting.append((key, lie))
        while len(waiting) >= batch:
            taken, waiting = waiting[:batch], waiting[batch:]
            trained += batch
            false += sum(lie for _, lie in taken)
    return false / trained


@pytest.mark.parametrize(
    "patience", [0, 10, 400, 800, 2000, pytest.param(8000, marks=pytest.mark.slow)]
)
def test_of_what_is_trained_on_less_than_one_in_a_thousand_is_false(patience: int) -> None:
    rounds = max(1500, 3 * patience)
    share = share_of_false(RULES, patience, batches=rounds * 100 // 32, seed=patience)
    assert share < 1e-3


def test_auditing_one_in_n_of_single_groups_would_not_do() -> None:
    one_in_n = RULES.model_copy(update={"probation": 1})
    assert share_of_false(one_in_n, 20, batches=3000, seed=1) > 0.05


def test_auditing_costs_little_once_nodes_are_known() -> None:
    reputation, rng = Reputation(RULES), random.Random(0)
    audits = []
    for _ in range(20_000):
        audits.append(rng.random() < reputation.audit_probability(NODE, 0.0))
        reputation.earned(NODE, 0.0)
    assert sum(audits[:400]) == 400
    assert sum(audits) / len(audits) < 0.12
    assert sum(audits[-5000:]) / 5000 < 0.06
