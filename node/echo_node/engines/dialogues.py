"""Answers of several turns, by any engine: generate, ask the environment, append, go on.

Promise: an answer's course is that of `echo_p2p.dialogue`, and the noise of a token depends on its
place in the answer alone; so it does not matter how turns are batched. A job without turns is a
course of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from echo_node.engines.base import Completion, Job
from echo_p2p.dialogue import Dialogue, Rules, TokenReply
from echo_p2p.text import TurnText, environment_says, in_tokens
from echo_p2p.wire import Turns


class Course:
    """One job as it is answered, turn by turn."""

    def __init__(self, job: Job) -> None:
        self.dialogue = Dialogue(Rules.of(job.sampling, job.turns))
        self._job = job
        self._logprobs: list[float] = []

    @property
    def next_turn(self) -> Job:
        """The job that is the next turn; its keys and values are kept if others may follow."""
        rules = self.dialogue.rules
        return replace(
            self._job,
            prompt=[*self._job.prompt, *self.dialogue.tokens],
            start=self._job.start + len(self.dialogue.tokens),
            sampling=replace(self._job.sampling, max_new_tokens=self.dialogue.room),
            keep=self._job.keep or len(self.dialogue.turns) + 1 < rules.max_turns,
            turns=None,
        )

    def say(self, turn: Completion) -> bool:
        """The turn was taken; whether a reply is due."""
        self._logprobs += turn.logprobs
        return self.dialogue.say(turn.tokens)

    def hear(self, observation: Sequence[int] | None) -> bool:
        """The reply; whether there is a next turn."""
        goes_on = self.dialogue.hear(observation)
        if goes_on:
            self._logprobs += [0.0] * (len(self.dialogue.tokens) - len(self._logprobs))
        return goes_on

    @property
    def completion(self) -> Completion:
        """The answer, when it is over."""
        return Completion(
            self.dialogue.tokens,
            self._logprobs,
            "stop" if self.dialogue.stopped else "length",
            self.dialogue.observed,
        )


def reply_of(turns: Turns, text: TurnText) -> TokenReply:
    """What the environment that `turns` name says, in tokens of the base's."""
    return in_tokens(environment_says(turns), turns, text)
