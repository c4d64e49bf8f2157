"""Dialogues at the hub: leases say how prompts go on; answers are played again, and scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from echo_hub import tasks
from echo_hub.models import addmix3_path
from echo_hub.scoring.process import (
    Altered,
    Answer,
    Failed,
    MadePrompt,
    MakePrompts,
    Replied,
    Reply,
    Score,
    Scored,
    Scorer,
    Setup,
    TaskSetup,
)
from echo_hub.tasks.base import Prompt, Transcript, Turns
from echo_hub.tasks.replay import Answered, Told
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError

TOKENIZER = Tokenizer.load(addmix3_path())
STOP = TOKENIZER.eos[0]


class Guess:
    """A task of the operator's own: nobody else knows what it replies."""

    def __init__(self) -> None:
        self.seen: list[Transcript] = []

    def prompt(self, split: str, index: int) -> Prompt:
        return Prompt("?", {"number": 7}, Turns(3, state={"ignored": True}))

    def reply(self, prompt: Prompt, answers: Sequence[str]) -> str | None:
        if answers[-1] == "boom":
            raise RuntimeError("the tool is broken")
        if answers[-1] in ("long", "none"):
            return "x" * 9000 if answers[-1] == "long" else ""
        return None if answers[-1] == "7" else f"no {len(answers)}"

    def reward(self, prompt: Prompt, transcript: Transcript) -> float:
        self.seen.append(transcript)
        return float(transcript.answers[-1] == "7")


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Guess:
    made = Guess()
    monkeypatch.setitem(tasks._TASKS, "own", lambda options, seed: made)
    return made


def scorer_of(name: str, **limits: int) -> Scorer:
    setup = {"longest_prompt": 60, "max_new_tokens": 60, "turn_tokens": 8, **limits}
    task = TaskSetup(name=name, options={}, template="raw")
    return Scorer(
        Setup(tasks=[task], seed=0, base=str(addmix3_path()), memory=0, network=True, **setup)
    )


def made(scorer: Scorer, index: int = 0) -> MadePrompt:
    (one,) = scorer.prompts(MakePrompts(split="train", indices=[index])).prompts  # type: ignore[union-attr]
    assert isinstance(one, MadePrompt), one
    return one


def turn(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, "raw"), STOP]


def answer(*parts: str) -> Answered:
    """Turns and observations, by turns."""
    tokens: list[int] = []
    observed = []
    for number, part in enumerate(parts):
        piece = TOKENIZER.encode(part, "raw") if number % 2 else turn(part)
        if number % 2:
            observed.append((len(tokens), len(tokens) + len(piece)))
        tokens += piece
    return Answered(tokens, observed)


def score(scorer: Scorer, *answers: Answered) -> Answer:
    prompt = made(scorer)
    return scorer.score(Score(split="train", index=0, prompt=prompt.tokens, answers=list(answers)))


def test_a_lease_says_how_a_prompt_goes_on() -> None:
    scorer = scorer_of("guess-number")
    assert scorer.environments == ["guess-number/1"]
    turns = made(scorer).turns
    assert turns is not None
    assert (turns.environment, turns.max_turns, turns.turn_tokens) == ("guess-number/1", 3, 8)
    assert turns.state.startswith(b'{"number":')
    assert made(scorer_of("addmix3")).turns is None


def number_of(scorer: Scorer) -> int:
    turns = made(scorer).turns
    assert turns is not None
    return int(turns.state.split(b":")[1].split(b",")[0])


def test_a_dialogue_is_gone_through_again_before_it_is_scored() -> None:
    scorer = scorer_of("guess-number")
    number = number_of(scorer)
    told = "higher:" if number > 1 else "lower:"
    wrong = "1" if number > 1 else "2"
    right = answer(wrong, told, f"{number}")
    assert score(scorer, right, answer(f"{number}")) == Scored(rewards=[1.0, 1.0])
    other = "lower:" if told == "higher:" else "higher:"
    for bad in (answer(wrong, other, f"{number}"), answer(wrong), Answered(right.tokens)):
        found = score(scorer, right, bad)
        assert isinstance(found, Altered)
        assert found.message.startswith("Rollout 1: ")


def test_one_answer_is_one_turn() -> None:
    """In a run that has turns too, the cheap checks let a single answer end at a turn's limit."""
    scorer = scorer_of("addmix3")
    assert isinstance(score(scorer, Answered([5] * 60)), Scored)
    for bad in (Answered([5] * 8), Answered([5, STOP, 5, STOP], [(2, 3)])):
        assert isinstance(score(scorer, bad), Altered)


def ask(scorer: Scorer, *dialogues: list[list[int]]) -> Answer:
    return scorer.reply(Reply(split="train", index=0, dialogues=list(dialogues)))


def test_a_task_of_the_operators_own_replies_at_the_hub(task: Guess) -> None:
    scorer = scorer_of("own")
    turns = made(scorer).turns
    assert turns is not None
    assert (turns.environment, turns.state, turns.max_turns) == ("", b"{}", 3)
    replied = ask(scorer, [turn("1")], [turn("1"), turn("2")], [turn("7")])
    assert isinstance(replied, Replied)
    assert [told.text for told in replied.told] == ["no 1", "no 2", None]
    assert [told.turn for told in replied.told] == [turn("1"), turn("2"), turn("7")]
    assert replied.told[0].tokens == TOKENIZER.encode("no 1", "raw")


def test_what_it_told_is_what_an_answer_must_hold(task: Guess) -> None:
    scorer = scorer_of("own")
    told = [
        Told(turn("1"), "no 1", TOKENIZER.encode("no 1", "raw")),
        Told(turn("7"), None, []),
    ]

    def with_told(one: Answered, said: Sequence[Told]) -> Answered:
        return Answered(one.tokens, one.observed, list(said))

    right = with_told(answer("1", "no 1", "7"), told)
    assert score(scorer, right) == Scored(rewards=[1.0])
    assert task.seen == [Transcript(("1", "7"), ("no 1",))]
    for bad, said in (
        (answer("1", "no 2", "7"), told),  # altered
        (answer("2", "no 1", "7"), told),  # another turn than was handed in
        (answer("1", "no 1", "8"), told),
        (answer("1", "no 1", "7"), told[:1]),  # never handed in
        (answer("1", "no 1", "7"), ()),
        (answer("7"), ()),
    ):
        assert isinstance(score(scorer, with_told(bad, said)), Altered)
    assert len(task.seen) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [("boom", "the tool is broken"), ("long", "at most 8192 characters"), ("none", "no tokens")],
)
def test_a_reply_that_fails_is_said_to(task: Guess, text: str, why: str) -> None:
    found = ask(scorer_of("own"), [turn("1")], [turn(text)])
    assert isinstance(found, Failed)
    assert why in found.message


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        (Turns(0), "0 turns"),
        (Turns(65), "65 turns"),
        (Turns(2, "guess-number/1", {"number": 1}), "which its task does not list"),
        (Turns(2, state={"x": float("nan")}), "not JSON compliant"),
    ],
)
def test_turns_that_cannot_be_had(task: Guess, turns: Turns, why: str) -> None:
    task.prompt = lambda split, index: Prompt("?", {}, turns)  # type: ignore[method-assign]
    (one,) = scorer_of("own").prompts(MakePrompts(split="train", indices=[0])).prompts  # type: ignore[union-attr]
    assert isinstance(one, str)
    assert why in one


def test_a_state_has_its_limit(task: Guess) -> None:
    task.environments = ("guess-number/1",)  # type: ignore[attr-defined]
    state: dict[str, Any] = {"number": 1, "high": 2, "words": "x" * 17_000}
    task.prompt = lambda split, index: Prompt("?", {}, Turns(2, "guess-number/1", state))  # type: ignore[method-assign]
    (one,) = scorer_of("own").prompts(MakePrompts(split="train", indices=[0])).prompts  # type: ignore[union-attr]
    assert "a state of 170" in str(one)


def test_a_task_without_any_reply_cannot_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def prompt(self, split: str, index: int) -> Prompt:
            return Prompt("?", {}, Turns(2))

    monkeypatch.setitem(tasks._TASKS, "own", lambda options, seed: Silent())
    (one,) = scorer_of("own").prompts(MakePrompts(split="train", indices=[0])).prompts  # type: ignore[union-attr]
    assert "a task without a method reply" in str(one)


def test_an_environment_that_nobody_has_stops_the_start(task: Guess) -> None:
    task.environments = ("chess/1",)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no environment 'chess/1'"):
        scorer_of("own")
