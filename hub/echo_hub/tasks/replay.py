"""Multi-turn prompts at the hub: what a lease says of them, and what came of them.

Promises: of every group the whole dialogue is gone through again, and an answer whose tokens differ
anywhere from what its turns lead to is found; the transcript that the reward sees holds what the
environment said, computed or remembered here, and nothing that a node says it said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from echo_hub.tasks.base import AnyTask, Prompt, Replies, Transcript
from echo_p2p.dialogue import Rules, TokenReply, fault_in, turns_of
from echo_p2p.environments import MAX_OBSERVATION, environment
from echo_p2p.errors import ConfigError, DialogueError
from echo_p2p.text import TextReply, TurnText, environment_says, in_tokens, wrapped
from echo_p2p.wire import MAX_STATE_BYTES, MAX_TURNS, Turns, pack_tokens


class Told(msgspec.Struct, frozen=True):
    """A turn that a node handed in, and what the hub's own task said to it: None ends."""

    turn: list[int]
    text: str | None
    tokens: list[int]


class Answered(msgspec.Struct, frozen=True):
    """An answer as a node handed it in; `told` is what the hub said in it, turn by turn."""

    tokens: list[int]
    observed: list[tuple[int, int]] = []
    told: list[Told] = []


def environments_of(task: AnyTask) -> list[str]:
    """The environments that a task's prompts may name; ConfigError if one is unknown."""
    names = list(getattr(task, "environments", ()))
    for name in names:
        try:
            environment(name)
        except DialogueError as error:
            raise ConfigError(error.message, fix=error.fix) from error
    return names


def order_of(
    task: AnyTask, prompt: Prompt, around: tuple[Sequence[int], Sequence[int]], turn_tokens: int
) -> Turns | None:
    """What leases say of a prompt's turns; ConfigError if they cannot be had.

    Args:
        around: token ids that stand before and after an observation.
        turn_tokens: longest turn.
    """
    turns = prompt.turns
    if turns is None:
        return None
    state = json.dumps(dict(turns.state), separators=(",", ":"), allow_nan=False).encode()
    known = turns.environment in environments_of(task) if turns.environment else (
        isinstance(task, Replies)
    )  # fmt: skip
    faults = (
        (not 1 <= turns.max_turns <= MAX_TURNS, f"{turns.max_turns} turns, not 1 to {MAX_TURNS}"),
        (len(state) > MAX_STATE_BYTES, f"a state of {len(state)} bytes; {MAX_STATE_BYTES} fit"),
        (
            not known and bool(turns.environment),
            f"the environment {turns.environment!r}, which its task does not list",
        ),
        (not known, "turns, no environment, and a task without a method reply"),
    )
    for wrong, what in faults:
        if wrong:
            raise ConfigError(f"a prompt has {what}.")
    return Turns(
        environment=turns.environment,
        state=state if turns.environment else b"{}",
        before=pack_tokens(around[0]),
        after=pack_tokens(around[1]),
        max_turns=turns.max_turns,
        turn_tokens=turn_tokens,
    )


class Replay:
    """Goes through the answers to one prompt.

    Args:
        rules: of the prompt; `turns` is None if it is answered once.
    """

    def __init__(self, rules: Rules, turns: Turns | None, text: TurnText) -> None:
        self._rules = rules
        self._turns = turns
        self._text = text
        named = turns is not None and turns.environment
        self._says: TextReply | None = environment_says(turns) if turns and named else None

    def fault(self, answer: Answered) -> str:
        """How an answer departs from what its turns lead to; empty if it does not."""

        def from_memory(so_far: list[list[int]]) -> list[int] | None:
            number = len(so_far) - 1
            if number >= len(answer.told) or answer.told[number].turn != so_far[-1]:
                raise _NotHandedInError(f"turn {number + 1} is not the one that was handed in")
            told = answer.told[number]
            return None if told.text is None else told.tokens

        reply: TokenReply = from_memory
        if self._turns is not None and self._says is not None:
            reply = in_tokens(self._says, self._turns, self._text)
        try:
            return fault_in(answer.tokens, answer.observed, self._rules, reply)
        except _NotHandedInError as error:
            return str(error)

    def transcript(self, answer: Answered) -> Transcript:
        """What was said, in an answer without fault."""
        said = [self._text.answer(turn) for turn in turns_of(answer.tokens, answer.observed)]
        count = len(said) - 1
        heard = (
            [self._says(said[: number + 1]) for number in range(count)]
            if self._says is not None
            else [told.text for told in answer.told[:count]]
        )
        return Transcript(tuple(said), tuple(text or "" for text in heard))


class _NotHandedInError(Exception):
    pass


def reply_at_hub(
    task: AnyTask, prompt: Prompt, turns: Turns, text: TurnText, so_far: Sequence[list[int]]
) -> Told:
    """Ask an operator's own task what it says after these turns."""
    if not isinstance(task, Replies):
        raise DialogueError("the task has no method reply.")
    said = task.reply(prompt, [text.answer(turn) for turn in so_far])
    if said is None:
        return Told(so_far[-1], None, [])
    if not isinstance(said, str) or len(said) > MAX_OBSERVATION:
        raise DialogueError(f"reply must return at most {MAX_OBSERVATION} characters, or None.")
    tokens = wrapped(turns, text.observation(said))
    if not tokens:
        raise DialogueError("a reply has no tokens.")
    return Told(so_far[-1], said, tokens)
