"""The course of a multi-turn answer: nothing is tokenised twice, and every departure is found."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.dialogue import Dialogue, Rules, fault_in, turns_of
from echo_p2p.errors import DialogueError

STOP = 2
TOKENS = st.integers(3, 9)


def replies(seed: int, over: int) -> object:
    """An environment by token ids: a function of the turns so far, over after some of them."""

    def reply(turns: list[list[int]]) -> list[int] | None:
        if len(turns) > over:
            return None
        chance = random.Random(f"{seed} {turns}")
        return [chance.choice([1, STOP, 5, 6]) for _ in range(chance.randint(1, 4))]

    return reply


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Rules, object, Dialogue]:
    """Rules, an environment, and a dialogue of turns at random that kept to them."""
    rules = Rules((STOP, 3), draw(st.integers(1, 30)), draw(st.integers(1, 10)),
                  draw(st.integers(1, 5)))  # fmt: skip
    reply = replies(draw(st.integers(0, 99)), draw(st.integers(0, 5)))
    dialogue = Dialogue(rules)
    while True:
        turn = draw(st.lists(st.integers(4, 9), max_size=dialogue.room))
        if len(turn) < dialogue.room:
            turn.append(STOP)
        if not (dialogue.say(turn) and dialogue.hear(reply(dialogue.turns))):  # type: ignore[operator]
            return rules, reply, dialogue


@given(scenes())
@settings(max_examples=200, deadline=None)
def test_an_honest_answer_has_no_fault(scene: tuple[Rules, object, Dialogue]) -> None:
    rules, reply, dialogue = scene
    assert fault_in(dialogue.tokens, dialogue.observed, rules, reply) == ""  # type: ignore[arg-type]
    assert turns_of(dialogue.tokens, dialogue.observed) == dialogue.turns
    assert len(dialogue.tokens) <= rules.max_tokens
    assert len(dialogue.turns) <= rules.max_turns
    assert all(1 <= len(turn) <= rules.turn_tokens for turn in dialogue.turns)
    ends = [0, *(end for _, end in dialogue.observed)]
    for turn, start in zip(dialogue.turns, ends, strict=True):  # each has a sampled token beside it
        assert dialogue.tokens[start : start + len(turn)] == turn


@given(scenes(), st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_observed_cannot_be_altered(
    scene: tuple[Rules, object, Dialogue], data: st.DataObject
) -> None:
    rules, reply, dialogue = scene
    spans = [at for start, end in dialogue.observed for at in range(start, end)]
    if not spans:
        return
    tokens, at = list(dialogue.tokens), data.draw(st.sampled_from(spans))
    tokens[at] = data.draw(TOKENS.filter(lambda token: token != tokens[at]))
    assert "another observation" in fault_in(tokens, dialogue.observed, rules, reply)  # type: ignore[arg-type]


@given(scenes(), st.data())
@settings(max_examples=200, deadline=None)
def test_turns_of_its_own_in_the_place_of_observations_are_found(
    scene: tuple[Rules, object, Dialogue], data: st.DataObject
) -> None:
    """Whatever is cut off, appended or claimed otherwise departs from the one course there is."""
    rules, reply, dialogue = scene
    tokens = dialogue.tokens
    shorter = tokens[: data.draw(st.integers(0, len(tokens) - 1))]
    longer = [*tokens, *data.draw(st.lists(TOKENS, min_size=1, max_size=5))]
    assert fault_in(shorter, [s for s in dialogue.observed if s[1] < len(shorter)], rules, reply)  # type: ignore[arg-type]
    if len(tokens) < rules.max_tokens or dialogue.stopped:
        assert fault_in(longer, dialogue.observed, rules, reply)  # type: ignore[arg-type]
    for spans in (dialogue.observed[1:], [*dialogue.observed, (0, 1)], [(0, len(tokens))]):
        if spans != dialogue.observed:
            assert "observed tokens are" in fault_in(tokens, spans, rules, reply)  # type: ignore[arg-type]


def say(*turns: Sequence[int], observation: list[int] | None, rules: Rules) -> Dialogue:
    dialogue = Dialogue(rules)
    for turn in turns:
        if not (dialogue.say(turn) and dialogue.hear(observation)):
            break
    return dialogue


@pytest.mark.parametrize(
    ("rules", "observation", "tokens", "observed"),
    [
        (Rules((STOP,), 20, 20, 2), [7], [5, STOP, 7, 6, STOP], [(2, 3)]),
        (Rules((STOP,), 20, 20, 1), [7], [5, STOP], []),  # the only turn
        (Rules((STOP,), 20, 20, 9), None, [5, STOP], []),  # the environment is done
        (Rules((STOP,), 4, 4, 9), [7], [5, STOP, 7, 6], [(2, 3)]),  # one token fits, and is a turn
        (Rules((STOP,), 4, 4, 9), [7, 7], [5, STOP], []),  # none would fit
        (Rules((STOP,), 20, 1, 9), [7], [5], []),  # cut off at the turn's limit
    ],
)
def test_when_an_answer_ends(
    rules: Rules, observation: list[int] | None, tokens: list[int], observed: list[tuple[int, int]]
) -> None:
    turns = [[5, STOP][: rules.turn_tokens], [6, STOP]]
    if tokens[-1] == 6:
        turns[1] = [6]
    dialogue = say(*turns, observation=observation, rules=rules)
    assert (dialogue.tokens, dialogue.observed) == (tokens, observed)
    assert fault_in(tokens, observed, rules, lambda _: observation) == ""


def test_an_observation_has_tokens() -> None:
    with pytest.raises(DialogueError, match="no tokens"):
        say([STOP], observation=[], rules=Rules((STOP,), 20, 20, 2))
