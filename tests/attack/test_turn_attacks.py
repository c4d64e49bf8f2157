"""A node that is told something else than the environment says, or says so: found in every group.

The environment runs on the node, so the node knows the hidden state and may tell the policy
whatever it likes. The hub goes through every dialogue again. These lies are all well formed, pass
the cheap checks, and would pass the audit, which looks at what was sampled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from attack_support import Arena, open_arena, small_run
from msgspec.structs import replace

from echo_hub.models import addmix3_path
from echo_hub.tokens import Tokenizer
from echo_p2p.text import TurnText
from echo_p2p.wire import (
    Lease,
    Rollout,
    Submission,
    Turns,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)

TOKENIZER = Tokenizer.load(addmix3_path())
STOP = TOKENIZER.eos[0]
LIMIT = 150


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    config = small_run(
        task={"name": "guess-number", "options": {"high": 9, "turns": 4}},
        sampling={"group_size": 2, "max_new_tokens": LIMIT, "turn_tokens": 40},
        learner={"groups_per_update": 10_000, "staleness": 1, "threads": 1},
    )
    with open_arena(config, tmp_path_factory.mktemp("arena"), ahead=8) as opened:
        yield opened


async def dialogue(arena: Arena) -> Submission:
    """An honest group whose first answer has several turns."""
    while True:
        honest = await arena.ready(arena.attacker)
        if len(honest.rollouts[0].observed) > 1:
            return honest


def test_honest_dialogues_are_accepted_and_audited(arena: Arena) -> None:
    async def scene() -> None:
        honest = await dialogue(arena)
        audited = arena.hub.front.snapshot().audited
        assert await arena.outcome(arena.attacker, honest) == "accepted"
        assert arena.hub.front.snapshot().audited == audited + 1

    arena.run(scene)


def observing(change: Callable[[list[int]], list[int]]) -> Callable[[Rollout], Rollout]:
    """Exchange the first observation for another one, and leave all that was sampled."""

    def spoil(rollout: Rollout) -> Rollout:
        tokens, values = unpack_tokens(rollout.tokens), unpack_logprobs(rollout.logprobs)
        (start, end), *rest = rollout.observed
        new = change(tokens[start:end])
        longer = len(new) - (end - start)
        return replace(
            rollout,
            tokens=pack_tokens([*tokens[:start], *new, *tokens[end:]]),
            logprobs=pack_logprobs([*values[:start], *[0.0] * len(new), *values[end:]]),
            observed=((start, start + len(new)), *((a + longer, b + longer) for a, b in rest)),
        )

    return spoil


def one_turn_less(rollout: Rollout) -> Rollout:
    """The dialogue ends with its first turn: the bad guesses after it are left out."""
    start = rollout.observed[0][0]
    tokens, logprobs = rollout.tokens[: 4 * start], rollout.logprobs[: 4 * start]
    return replace(rollout, tokens=tokens, logprobs=logprobs, observed=())


def one_turn_more(rollout: Rollout) -> Rollout:
    """A right guess after the end."""
    guess = [*TOKENIZER.turn_text.observation("higher:"), *TOKENIZER.encode("5", "raw"), STOP]
    end = len(rollout.tokens) // 4
    return replace(
        rollout,
        tokens=rollout.tokens + pack_tokens(guess),
        logprobs=rollout.logprobs + pack_logprobs([0.0] * 7 + [-0.5, -0.5]),
        observed=(*rollout.observed, (end, end + 7)),
    )


def unsaid_spans(rollout: Rollout) -> Rollout:
    """Another turn is said to be observed, so that nobody looks at what it says."""
    values = unpack_logprobs(rollout.logprobs)
    (start, _), (_, end), *rest = rollout.observed
    values[start:end] = [0.0] * (end - start)
    return replace(rollout, logprobs=pack_logprobs(values), observed=((start, end), *rest))


LIES: dict[str, Callable[[Rollout], Rollout]] = {
    "says that the guess was right": observing(lambda _: TOKENIZER.encode("that is it:", "raw")),
    "tells the policy the secret": observing(lambda had: [*had, *TOKENIZER.encode("5", "raw")]),
    "one token is another": observing(lambda had: [*had[:-1], 5]),
    "an observation shorter": observing(lambda had: had[:-1]),
    "ends early": one_turn_less,
    "goes on too long": one_turn_more,
    "a turn is said to be observed": unsaid_spans,
}


@pytest.mark.parametrize("name", LIES)
def test_what_the_environment_did_not_say_is_found(arena: Arena, name: str) -> None:
    async def scene() -> None:
        before = await arena.counts()
        honest = await dialogue(arena)
        first, *others = honest.rollouts
        spoilt = replace(honest, rollouts=(LIES[name](first), *others))
        assert await arena.outcome(arena.attacker, spoilt) == "bad_observation"
        assert (await arena.counts() - before) == {"bad_observation": 2}

    arena.run(scene)


def test_a_policy_that_was_told_the_secret_while_it_sampled_is_found(arena: Arena) -> None:
    """Not only claimed: generated that way, so that the audit alone would see nothing."""

    async def scene() -> None:
        for lease in await arena.attacker.leases(4):
            assert lease.turns is not None
            told = await answers_with(arena, lease, after=TOKENIZER.encode(" 5", "raw"))
            if told.rollouts[0].observed:
                assert await arena.outcome(arena.attacker, told) == "bad_observation"
                return
        raise AssertionError("no dialogue had a second turn")

    arena.run(scene)


async def answers_with(arena: Arena, lease: Lease, after: list[int]) -> Submission:
    assert lease.turns is not None
    turns: Turns = replace(lease.turns, after=pack_tokens(after))
    (told,) = await arena.answers([replace(lease, turns=turns)])
    return told


def test_the_secret_does_not_help_to_choose_what_is_sampled(arena: Arena) -> None:
    """A node knows the state; the right guess, written by hand, fails the audit as ever."""

    async def scene() -> None:
        (lease,) = await arena.attacker.leases(1)
        (honest,) = await arena.answers([lease])
        assert lease.turns is not None
        number = json.loads(lease.turns.state)["number"]
        tokens = [*TOKENIZER.encode(str(number), "raw"), STOP]
        by_hand = replace(
            honest.rollouts[0], tokens=pack_tokens(tokens), logprobs=pack_logprobs([-0.5] * 2),
            finish="stop", observed=(),
        )  # fmt: skip
        spoilt = replace(honest, rollouts=(by_hand, by_hand))
        assert await arena.outcome(arena.attacker, spoilt) == "audit_margin"

    arena.run(scene)


def test_the_node_has_the_hubs_words(arena: Arena) -> None:
    """An honest node's observations are the environment's, by the tokenizer that both have."""

    async def scene() -> None:
        honest = await dialogue(arena)
        text = TurnText.load(addmix3_path(), TOKENIZER.eos)
        tokens = unpack_tokens(honest.rollouts[0].tokens)
        for start, end in honest.rollouts[0].observed:
            said = text.answer(tokens[start:end])
            assert said in ("higher:", "lower:", "a number from 1 to 9:")

    arena.run(scene)
