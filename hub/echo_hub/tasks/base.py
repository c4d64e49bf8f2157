"""What a task is: a source of prompts and a reward. The smallest interface that trains.

A single-turn task has `prompt` and `reward`, and nothing else. A multi-turn one gives each prompt
`turns`, which say who answers the policy's turns: an environment that nodes have (see
`echo_p2p.environments`), or the task itself, by its method `reply`, at the hub. A task may mix
prompts of all kinds.

`prompt` must be a pure function of (split, index): a scorer process makes the same prompt again to
compute the reward, and a re-leased index must give the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Turns:
    """How a prompt's dialogue goes on after each turn of the policy.

    `environment` is the id of one of `echo_p2p.environments`; it is given `state`, a JSON object
    that the node sees and the policy does not. If it is empty, the task's own `reply` is asked, at
    the hub. The dialogue ends when the reply is None, after `max_turns` turns of the policy, and
    when a turn reaches its token limit.
    """

    max_turns: int
    environment: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """`text` goes to the policy; `data` is what the reward needs to know, and goes nowhere.

    `turns` is None if the policy answers once.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    turns: Turns | None = None


@dataclass(frozen=True)
class Transcript:
    """A finished dialogue: the policy's turns, and what it was told after each but the last.

    Turns are without their stop token; `observations` are as the environment gave them.
    """

    answers: tuple[str, ...]
    observations: tuple[str, ...]


class Task(Protocol):
    """A single-turn task."""

    def prompt(self, split: Split, index: int) -> Prompt:
        """The prompt number `index` (0, 1, 2, ...) of a split. Splits share no prompt."""
        ...

    def reward(self, prompt: Prompt, answer: str, /) -> float:
        """Reward of a finished answer, without its end-of-sequence token. Finite, usually [0, 1].

        Raising is a failure to score, never a reward of zero.
        """
        ...


class MultiTurnTask(Protocol):
    """A task whose prompts have `turns`."""

    @property
    def environments(self) -> Sequence[str]:
        """Ids of the environments that its prompts name; nodes without one are told to upgrade."""
        ...

    def prompt(self, split: Split, index: int) -> Prompt:
        """As in `Task`."""
        ...

    def reward(self, prompt: Prompt, transcript: Transcript, /) -> float:
        """Reward of a finished dialogue; as in `Task`."""
        ...


@runtime_checkable
class Replies(Protocol):
    """A multi-turn task that answers the policy itself, at the hub, turn by turn."""

    def reply(self, prompt: Prompt, answers: Sequence[str]) -> str | None:
        """What the policy is told after its last answer; None ends the dialogue.

        It may use tools and need not be pure: what it said is kept, and no turn is asked twice,
        unless the process that computes it dies. Raising gives the whole group up.
        """
        ...


AnyTask = Task | MultiTurnTask
