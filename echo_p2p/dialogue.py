"""The course of a multi-turn answer, in tokens: one definition for nodes and hub. Pure.

An answer's `tokens` are the policy's turns and, between them, what it was told. A turn ends with a
stop token, which is kept, or at a limit of tokens. What comes next:

- a turn that reached its limit without a stop token ends the answer;
- so does the last turn that the rules allow;
- otherwise a reply is due. No reply ends the answer, and so does one after which not a single token
  of another turn would fit. Else its tokens are appended as they are, and another turn begins.

Nothing is tokenised twice: what was sampled or appended once stays, token for token, the beginning
of all that follows. So an answer has one course for every sequence of turns, and `fault_in` finds
whatever departs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echo_p2p.errors import DialogueError
from echo_p2p.wire import Sampling, Turns

TokenReply = Callable[[list[list[int]]], list[int] | None]
"""What the policy reads after its turns so far (with their stop tokens), or None at the end."""


@dataclass(frozen=True)
class Rules:
    """Limits of an answer: tokens in all, tokens of one turn, turns; and what ends a turn."""

    stop: tuple[int, ...]
    max_tokens: int
    turn_tokens: int
    max_turns: int

    @classmethod
    def of(cls, sampling: Sampling, turns: Turns | None) -> Rules:
        """Those of a lease."""
        most = sampling.max_new_tokens
        if turns is None:
            return cls(sampling.stop, most, most, 1)
        return cls(sampling.stop, most, min(turns.turn_tokens, most), turns.max_turns)


class Dialogue:
    """One answer as it comes about: `say` and `hear` by turns, until one of them is False."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.tokens: list[int] = []
        self.observed: list[tuple[int, int]] = []
        """Half-open spans of `tokens` that the policy did not sample."""
        self.turns: list[list[int]] = []
        """The policy's turns, with their stop tokens."""

    @property
    def room(self) -> int:
        """Most tokens that the next turn may have; at least 1 while the dialogue goes on."""
        return min(self.rules.turn_tokens, self.rules.max_tokens - len(self.tokens))

    @property
    def stopped(self) -> bool:
        """The last turn ended with a stop token, and not at a limit."""
        return bool(self.tokens) and self.tokens[-1] in self.rules.stop

    def say(self, turn: Sequence[int]) -> bool:
        """The policy's turn; whether a reply is due."""
        self.tokens += turn
        self.turns.append(list(turn))
        return self.stopped and len(self.turns) < self.rules.max_turns

    def hear(self, observation: Sequence[int] | None) -> bool:
        """The reply, if there is one; whether it is the policy's turn again."""
        if observation is None or len(self.tokens) + len(observation) >= self.rules.max_tokens:
            return False
        if not observation:
            raise DialogueError("an observation has no tokens.")
        start = len(self.tokens)
        self.tokens += observation
        self.observed.append((start, len(self.tokens)))
        return True


def turns_of(tokens: Sequence[int], observed: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The policy's turns in an answer: what lies between the observed spans."""
    ends = [start for start, _ in observed]
    return [
        list(tokens[start:end])
        for start, end in zip([0, *(end for _, end in observed)], [*ends, len(tokens)], strict=True)
    ]


def fault_in(
    tokens: Sequence[int],
    observed: Sequence[tuple[int, int]],
    rules: Rules,
    reply: TokenReply,
) -> str:
    """How an answer departs from the course that its turns must have had; empty if it does not."""
    dialogue, tokens = Dialogue(rules), list(tokens)
    while True:
        number, at = len(dialogue.turns) + 1, len(dialogue.tokens)
        turn = _first_turn(tokens[at : at + dialogue.room], rules.stop)
        if not turn or (len(turn) < dialogue.room and turn[-1] not in rules.stop):
            return f"it breaks off in turn {number}"
        at += len(turn)
        if not (dialogue.say(turn) and dialogue.hear(reply(dialogue.turns))):
            break
        if at == len(tokens):
            return f"it ends with turn {number}, and must go on"
        if tokens[at : len(dialogue.tokens)] != dialogue.tokens[at:]:
            return f"after turn {number} stands another observation than the environment's"
    if len(tokens) > len(dialogue.tokens):
        return f"it goes on after turn {number}, with which it must end"
    if list(map(tuple, observed)) != dialogue.observed:
        return f"the observed tokens are {dialogue.observed}"
    return ""


def _first_turn(tokens: Sequence[int], stop: Sequence[int]) -> list[int]:
    for length, token in enumerate(tokens, start=1):
        if token in stop:
            return list(tokens[:length])
    return list(tokens)
