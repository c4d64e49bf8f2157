"""The test on a node: its false-ban rate by simulation, when it finds a cheat, its state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.audit import sequential
from echo_hub.audit.sequential import (
    BETS,
    EDGES,
    FLOAT32,
    LIMIT,
    TOKENS_PER_DAY,
    NodeEvidence,
    Noise,
)
from echo_hub.learner.messages import Audited
from echo_p2p.errors import LedgerError

NONE = (0,) * len(EDGES)
BFLOAT16 = Noise(
    margin_rates=(0.03, 0.03, 0.02, 0.01, 5e-3, 2e-3, 1e-3),
    difference_rates=(1.0, 0.9, 0.4, 0.2, 0.05, 5e-3, 1e-3),
)


def group(
    tokens: int = 240,
    chance: float = 12.0,
    margins: tuple[int, ...] = NONE,
    differences: tuple[int, ...] = NONE,
) -> Audited:
    return Audited(
        max_margin=0.0,
        max_logprob_difference=0.0,
        mismatches=margins[0],
        tokens=tokens,
        margins=margins,
        differences=differences,
        chance=chance,
        bits=2 * chance,
    )


def tails(rng: np.random.Generator, rates: tuple[float, ...], exposure: float) -> tuple[int, ...]:
    """Tail counts of one group where each edge's rate is as given."""
    bins = [rate - after for rate, after in zip(rates, [*rates[1:], 0.0], strict=True)]
    counts = rng.poisson(np.array(bins) * exposure)
    return tuple(counts[::-1].cumsum()[::-1].tolist())


def sampled(rng: np.random.Generator, noise: Noise, tokens: int = 240) -> Audited:
    """A group of a node whose noise is as bad as `noise` allows."""
    chance = float(rng.uniform(0, 0.2)) * tokens
    return group(
        tokens,
        chance,
        tails(rng, noise.margin_rates, chance),
        tails(rng, noise.difference_rates, tokens),
    )


@pytest.mark.parametrize("noise", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
def test_no_bet_gains_on_honest_work(noise: Noise) -> None:
    """Each group multiplies a bet's wealth by 1 at most, on average, in the worst honest case."""
    rng = np.random.default_rng(1)
    growth = np.array(
        [
            [math.exp(bet.log_growth(found, noise)) for bet in BETS]
            for found in (sampled(rng, noise, tokens=20) for _ in range(4000))
        ]
    )
    error = growth.std(0) / math.sqrt(len(growth))
    assert (growth.mean(0) <= 1 + 4 * error + 1e-9).all()


def test_the_false_ban_rate_is_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doob's bound, at a level that can be simulated: with limit L, at most (1 + days) / L."""
    monkeypatch.setattr(sequential, "LIMIT", 40.0)
    monkeypatch.setattr(sequential, "TOKENS_PER_DAY", 12_000)
    rng = np.random.default_rng(2)
    nodes, groups = 200, 50  # one day each
    banned = 0
    for _ in range(nodes):
        evidence = NodeEvidence()
        for _ in range(groups):
            evidence = evidence.update(sampled(rng, BFLOAT16), BFLOAT16)
        banned += evidence.condemned
    bound = 2 / 40
    assert banned / nodes <= bound + 3 * math.sqrt(bound / nodes)


def test_ten_thousand_honest_node_days() -> None:
    assert (1 + 1) / LIMIT == 1e-4
    noiseless = group(tokens=TOKENS_PER_DAY // 100, chance=TOKENS_PER_DAY / 2000)
    evidence = NodeEvidence()
    for _ in range(100 * 30):
        evidence = evidence.update(noiseless)
    assert not evidence.condemned
    assert evidence.suspicion < 0.4


@pytest.mark.parametrize("past_groups", [0, 5000])
def test_a_quantised_model_is_found(past_groups: int) -> None:
    """One mismatch in 500 tokens, as int4 weights give on addmix3."""
    evidence = NodeEvidence()
    for _ in range(past_groups):
        evidence = evidence.update(group())
    rng = np.random.default_rng(3)
    tokens = 0
    while not evidence.condemned:
        found = int(rng.poisson(240 / 500))
        evidence = evidence.update(group(margins=(found, found, found, found, 0, 0, 0)))
        tokens += 240
    assert tokens <= 10_000


def test_log_probabilities_of_another_model_are_found() -> None:
    evidence = NodeEvidence()
    for _ in range(3):
        evidence = evidence.update(group(differences=(200, 150, 60, 20, 2, 0, 0)))
    assert evidence.condemned


def test_one_odd_token_condemns_nobody() -> None:
    evidence = NodeEvidence().update(group(margins=(1,) * len(EDGES)))
    assert not evidence.condemned
    assert 0 < evidence.suspicion < 1


def test_condemned_is_for_ever() -> None:
    evidence = replace(NodeEvidence(), condemned=True, wealth=(0.0,) * len(BETS))
    assert evidence.update(group()).condemned


def test_a_group_without_counts_is_no_evidence() -> None:
    bare = Audited(max_margin=9.0, max_logprob_difference=9.0, mismatches=5, tokens=10)
    assert NodeEvidence().update(bare) == NodeEvidence()


counts = st.lists(st.integers(0, 10_000), min_size=len(EDGES), max_size=len(EDGES)).map(
    lambda values: tuple(sorted(values, reverse=True))
)


@given(
    st.lists(
        st.builds(
            group,
            tokens=st.integers(1, 100_000),
            chance=st.floats(0, 1e6),
            margins=counts,
            differences=counts,
        ),
        max_size=12,
    )
)
def test_state_stays_finite_and_survives_the_ledger(groups: list[Audited]) -> None:
    evidence = NodeEvidence()
    for found in groups:
        evidence = evidence.update(found)
        assert all(math.isfinite(wealth) and wealth >= 0 for wealth in evidence.wealth)
        assert 0 <= evidence.suspicion <= 1
    assert NodeEvidence.from_json(evidence.to_json()) == evidence


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"tokens": 1}', NodeEvidence().to_json().replace("[0, ", "[", 1)],
)
def test_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(LedgerError):
        NodeEvidence.from_json(text)


@pytest.mark.parametrize("rates", [(), (0.0,) * 7, (2.0,) * 7, (math.nan,) * 7])
def test_rates_must_be_rates(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rates"):
        Noise(rates, FLOAT32.difference_rates)
