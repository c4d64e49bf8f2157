"""The scorer process: makes prompts and computes rewards. Never imports torch.

Tasks and their rewards run here and nowhere else, so that one which hangs, crashes or eats memory
is a process to kill and not the end of the hub. Once its tasks are made it has no network, and so
much more memory and no more (`echo_hub.confine`). Run by `echo_hub.scoring`, with PYTHONHASHSEED
fixed, so that every scorer makes the same prompt from the same (split, index).
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from echo_hub.confine import close_network, limit_memory
from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt, Split, Task
from echo_hub.tasks.kept import read_kept
from echo_hub.tasks.mixture import Mixture
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError, TaskError
from echo_p2p.pipes import ParentPipe

_REMEMBERED_PROMPTS = 4096
_NO_MEMORY = "the task needs more memory than scoring.memory allows"


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class TaskSetup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task of the run; the fields are those of `TaskSection`."""

    name: str
    options: dict[str, Any]
    template: Literal["raw", "chat"]
    buckets: int = 1
    kept: str = ""


class Setup(_Frame, frozen=True):
    """First message: the tasks, and the snapshot whose tokenizer is used.

    A prompt with more than `longest_prompt` tokens, or too long for the model to answer it with
    `max_new_tokens`, counts as one that cannot be made.
    """

    tasks: list[TaskSetup]
    seed: int
    base: str
    longest_prompt: int
    max_new_tokens: int
    memory: int
    network: bool


class Ready(_Frame, frozen=True):
    """The scorer is set up. `lacking`: limits that are not enforced on this machine, and why."""

    lacking: list[str] = []


class MakePrompts(_Frame, frozen=True):
    split: Split
    indices: list[int]


class Prompts(_Frame, frozen=True):
    """Token ids of each prompt, or a sentence that says why it cannot be made.

    `unreadable`: what one of them holds that the base model has no token for, if any does.
    """

    prompts: list[list[int] | str]
    unreadable: str = ""


class Score(_Frame, frozen=True):
    """Reward these answers to a prompt; `prompt` is what the policy was given, to be sure."""

    split: Split
    index: int
    prompt: list[int]
    answers: list[list[int]]


class Scored(_Frame, frozen=True):
    rewards: list[float]


class Failed(_Frame, frozen=True):
    """It could not be done. If `spent`, a fresh process might; else trying again would not help."""

    message: str
    spent: bool = False


Answer = Ready | Prompts | Scored | Failed
COMMANDS: Any = MakePrompts | Score
ANSWERS: Any = Answer


class Scorer:
    """Answers commands, once set up."""

    def __init__(self, setup: Setup) -> None:
        self._tokenizer = Tokenizer.load(Path(setup.base))
        self._tasks: list[Task] = [
            make_task(task.name, task.options, setup.seed) for task in setup.tasks
        ]
        self._templates = [task.template for task in setup.tasks]
        kept = [
            read_kept(one.kept, name=one.name, options=one.options, seed=setup.seed)
            if one.kept
            else []
            for one in setup.tasks
        ]
        self._mixture = Mixture([task.buckets for task in setup.tasks], kept=kept)
        room = self._tokenizer.context - setup.max_new_tokens
        self._longest = min(setup.longest_prompt, room)
        self._prompt = lru_cache(_REMEMBERED_PROMPTS)(self._make_prompt)

    def _make_prompt(self, split: Split, index: int) -> tuple[Prompt, list[int]]:
        task, number = self._mixture.place(split, index)
        prompt = self._tasks[task].prompt(split, number)
        tokens = self._tokenizer.encode(prompt.text, self._templates[task])
        if not 1 <= len(tokens) <= self._longest:
            raise ConfigError(
                f"{split} prompt {index} has {len(tokens)} tokens; 1 to {self._longest} fit."
            )
        return prompt, tokens

    def prompts(self, command: MakePrompts) -> Prompts | Failed:
        """Make prompts; one that cannot be made does not keep the others back."""
        made: list[list[int] | str] = []
        unreadable = ""
        for index in command.indices:
            try:
                prompt, tokens = self._prompt(command.split, index)
                made.append(tokens)
            except MemoryError:
                return Failed(message=_NO_MEMORY, spent=True)
            except Exception as error:  # noqa: BLE001 - tasks are other people's code
                made.append(_describe(error))
            else:
                if not unreadable and self._tokenizer.unknown in tokens:
                    template = self._templates[self._mixture.task_of(command.split, index)]
                    piece = self._tokenizer.unknown_in(prompt.text, template)
                    unreadable = f"{piece!r} in {prompt.text!r:.200}"
        return Prompts(prompts=made, unreadable=unreadable)

    def score(self, command: Score) -> Scored | Failed:
        """Compute the rewards of a group. Whatever goes wrong is a failure, never a zero."""
        try:
            prompt, tokens = self._prompt(command.split, command.index)
            if tokens != command.prompt:
                return Failed(message="the task does not make the same prompt again")
            task = self._tasks[self._mixture.task_of(command.split, command.index)]
            rewards = [
                float(task.reward(prompt, self._tokenizer.decode(answer)))
                for answer in command.answers
            ]
        except MemoryError:
            return Failed(message=_NO_MEMORY, spent=True)
        except Exception as error:  # noqa: BLE001 - tasks are other people's code
            return Failed(message=_describe(error))
        if not all(math.isfinite(reward) for reward in rewards):
            return Failed(message=f"the rewards {rewards} are not all finite")
        return Scored(rewards=rewards)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _set_up(pipe: ParentPipe) -> Scorer | None:
    setup = pipe.receive(Setup)
    if setup is None:
        return None
    try:
        scorer = Scorer(setup)
    except (ConfigError, TaskError) as error:
        pipe.send(Failed(message=str(error)))
        return None
    # now that what is imported and loaded takes its memory, and has been fetched
    lacking = [limit_memory(setup.memory), "" if setup.network else close_network()]
    pipe.send(Ready(lacking=[why for why in lacking if why]))
    return scorer


def main() -> None:
    """Serve the hub until it closes the pipe."""
    pipe = ParentPipe()
    scorer = _set_up(pipe)
    while scorer is not None and (command := pipe.receive(COMMANDS)) is not None:
        pipe.send(
            scorer.prompts(command) if isinstance(command, MakePrompts) else scorer.score(command)
        )


if __name__ == "__main__":
    main()
