"""The scorer process: makes prompts and computes rewards. Never imports torch.

Tasks and their rewards run here and nowhere else, so that one which hangs, crashes or eats memory
is a process to kill and not the end of the hub. Once its tasks are made it has no network, and so
much more memory and no more (`confine`). Run by `pool`, with PYTHONHASHSEED fixed, so that every
scorer makes the same prompt from the same (split, index).
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from echo_hub.scoring.confine import close_network, limit_memory
from echo_hub.tasks import make_task
from echo_hub.tasks.base import AnyTask, Prompt, Split
from echo_hub.tasks.kept import read_kept
from echo_hub.tasks.mixture import Mixture
from echo_hub.tasks.replay import (
    Answered,
    Replay,
    Told,
    environments_of,
    order_of,
    reply_at_hub,
)
from echo_hub.tokens import Tokenizer
from echo_p2p.dialogue import Rules
from echo_p2p.errors import ConfigError, EchoError, TaskError
from echo_p2p.pipes import ParentPipe, end_group
from echo_p2p.wire import Turns

_REMEMBERED_PROMPTS = 4096
_MOST_REWARD = 1e9  # what float32 can square, and add up
_ITS_OWN = (Exception, SystemExit)
"""What a task may raise without harm to its process. An exit is no end: the next would be too."""
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
    turn_tokens: int = 0


class Ready(_Frame, frozen=True):
    """The scorer is set up.

    `lacking`: limits that are not enforced on this machine, and why. `environments` are those that
    prompts of its tasks may name.
    """

    lacking: list[str] = []
    environments: list[str] = []


class MakePrompts(_Frame, frozen=True):
    split: Split
    indices: list[int]


class MadePrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt's token ids, and how it goes on after a turn, if it does."""

    tokens: list[int]
    turns: Turns | None = None


class Prompts(_Frame, frozen=True):
    """Each prompt, or a sentence that says why it cannot be made.

    `unreadable`: what one of them holds that the base model has no token for, if any does.
    """

    prompts: list[MadePrompt | str]
    unreadable: str = ""


class Score(_Frame, frozen=True):
    """Reward these answers to a prompt; `prompt` is what the policy was given, to be sure."""

    split: Split
    index: int
    prompt: list[int]
    answers: list[Answered]


class Scored(_Frame, frozen=True):
    rewards: list[float]


class Altered(_Frame, frozen=True):
    """An answer's turns are not followed by what they lead to; `message` says where."""

    message: str


class Reply(_Frame, frozen=True):
    """Ask the task what it says in each of these dialogues, given as the turns so far."""

    split: Split
    index: int
    dialogues: list[list[list[int]]]


class Replied(_Frame, frozen=True):
    told: list[Told]


class Failed(_Frame, frozen=True):
    """It could not be done. If `spent`, a fresh process might; else trying again would not help."""

    message: str
    spent: bool = False


Answer = Ready | Prompts | Scored | Altered | Replied | Failed
Command = MakePrompts | Score | Reply
COMMANDS: Any = Command
ANSWERS: Any = Answer


class Scorer:
    """Answers commands, once set up."""

    def __init__(self, setup: Setup) -> None:
        self._tokenizer = Tokenizer.load(Path(setup.base))
        self._tasks = [_made(task, setup.seed) for task in setup.tasks]
        self.environments = sorted({name for one in self._tasks for name in environments_of(one)})
        self._templates = [task.template for task in setup.tasks]
        kept = [
            read_kept(one.kept, name=one.name, options=one.options, seed=setup.seed)
            if one.kept
            else []
            for one in setup.tasks
        ]
        self._mixture = Mixture([task.buckets for task in setup.tasks], kept=kept)
        room = self._tokenizer.context - setup.max_new_tokens
        if room < 1:
            raise ConfigError(
                f"sampling.max_new_tokens = {setup.max_new_tokens} leaves no room for a prompt: "
                f"the base model has {self._tokenizer.context} positions.",
                fix="Lower it.",
            )
        self._longest = min(setup.longest_prompt, room)
        self._most_tokens = setup.max_new_tokens
        self._turn_tokens = setup.turn_tokens or setup.max_new_tokens
        self._prompt = lru_cache(_REMEMBERED_PROMPTS)(self._make_prompt)

    def _make_prompt(self, split: Split, index: int) -> tuple[Prompt, MadePrompt]:
        task, number = self._mixture.place(split, index)
        prompt = checked_prompt(self._tasks[task].prompt(split, number))
        tokens = self._tokenizer.encode(prompt.text, self._templates[task])
        if not 1 <= len(tokens) <= self._longest:
            raise ConfigError(
                f"{split} prompt {index} has {len(tokens)} tokens; 1 to {self._longest} fit."
            )
        around: tuple[list[int], list[int]] = ([], [])
        if prompt.turns is not None:
            around = self._tokenizer.around_observation(self._templates[task])
        turns = order_of(self._tasks[task], prompt, around, self._turn_tokens)
        return prompt, MadePrompt(tokens=tokens, turns=turns)

    def prompts(self, command: MakePrompts) -> Prompts | Failed:
        """Make prompts; one that cannot be made does not keep the others back."""
        made: list[MadePrompt | str] = []
        unreadable = ""
        for index in command.indices:
            try:
                prompt, order = self._prompt(command.split, index)
                made.append(order)
            except MemoryError:
                return Failed(message=_NO_MEMORY, spent=True)
            except _ITS_OWN as error:  # tasks are other people's code
                made.append(_describe(error))
            else:
                if not unreadable and self._tokenizer.unknown in order.tokens:
                    template = self._templates[self._mixture.task_of(command.split, index)]
                    piece = self._tokenizer.unknown_in(prompt.text, template)
                    unreadable = f"{piece!r} in {prompt.text!r:.200}"
        return Prompts(prompts=made, unreadable=unreadable)

    def score(self, command: Score) -> Scored | Altered | Failed:
        """Compute the rewards of a group. Whatever goes wrong is a failure, never a zero."""
        try:
            prompt, made = self._prompt(command.split, command.index)
            if made.tokens != command.prompt:
                return Failed(message="the task does not make the same prompt again")
            replay = Replay(self._rules(made.turns), made.turns, self._tokenizer.turn_text)
            for number, answer in enumerate(command.answers):
                fault = replay.fault(answer)
                if fault:
                    return Altered(message=f"Rollout {number}: {fault}."[:500])
            task: Any = self._tasks[self._mixture.task_of(command.split, command.index)]
            rewards = [
                checked_reward(
                    task.reward(prompt, self._tokenizer.decode(answer.tokens))
                    if made.turns is None
                    else task.reward(prompt, replay.transcript(answer))
                )
                for answer in command.answers
            ]
        except MemoryError:
            return Failed(message=_NO_MEMORY, spent=True)
        except _ITS_OWN as error:  # tasks are other people's code
            return Failed(message=_describe(error))
        if not all(math.isfinite(reward) for reward in rewards):
            return Failed(message=f"the rewards {rewards} are not all finite")
        if max(map(abs, rewards)) > _MOST_REWARD:
            return Failed(message=f"the rewards {rewards} are not all within {_MOST_REWARD:g}")
        return Scored(rewards=rewards)

    def reply(self, command: Reply) -> Replied | Failed:
        """What an operator's own task says in each dialogue of a group."""
        try:
            prompt, made = self._prompt(command.split, command.index)
            if made.turns is None:
                return Failed(message="the prompt is answered once")
            task = self._tasks[self._mixture.task_of(command.split, command.index)]
            text = self._tokenizer.turn_text
            told = [
                reply_at_hub(task, prompt, made.turns, text, turns) for turns in command.dialogues
            ]
        except MemoryError:
            return Failed(message=_NO_MEMORY, spent=True)
        except _ITS_OWN as error:  # tasks are other people's code
            return Failed(message=_describe(error))
        return Replied(told=told)

    def _rules(self, turns: Turns | None) -> Rules:
        most, stop = self._most_tokens, self._tokenizer.eos
        if turns is None:
            return Rules(stop, most, most, 1)
        return Rules(stop, most, min(turns.turn_tokens, most), turns.max_turns)

    def carry_out(self, command: Command) -> Answer:
        """Do what is asked."""
        match command:
            case MakePrompts():
                return self.prompts(command)
            case Score():
                return self.score(command)
            case Reply():
                return self.reply(command)


def _made(task: TaskSetup, seed: int) -> AnyTask:
    """A task of the run; ConfigError if that fails, whatever the reason."""
    try:
        return make_task(task.name, task.options, seed)
    except (ConfigError, TaskError):
        raise
    except _ITS_OWN as error:
        raise ConfigError(f"task {task.name} cannot be made: {_describe(error)}.") from error


def checked_prompt(prompt: Any) -> Prompt:
    """What a task returned for a prompt; TypeError if it is none."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt() returned {prompt!r:.100}, which is no Prompt")
    if not isinstance(prompt.text, str):
        raise TypeError(f"the text of a Prompt is {prompt.text!r:.100}, which is no str")
    if not prompt.text.isascii():
        prompt.text.encode()  # UnicodeEncodeError: half of a surrogate pair is no text
    return prompt


def checked_reward(reward: Any) -> float:
    """What a task returned for a reward; TypeError if it is no number."""
    if isinstance(reward, str | bytes | bytearray):  # which float() would read
        raise TypeError(f"reward() returned {reward!r:.100}, which is no number")
    try:
        return float(reward)
    except TypeError as error:
        raise TypeError(f"reward() returned {reward!r:.100}, which is no number") from error


def _describe(error: BaseException) -> str:
    """What a task's error says, in a sentence that can be sent; its own text may be anything."""
    try:
        text = str(error) if isinstance(error, EchoError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that fails to say what it is
        text = type(error).__name__
    return text[:500].encode(errors="backslashreplace").decode()


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
    lacking = [why for why in lacking if why]
    pipe.send(Ready(lacking=lacking, environments=scorer.environments))
    return scorer


def main() -> None:
    """Serve the hub until it closes the pipe."""
    pipe = ParentPipe(ends_group=True)
    scorer = _set_up(pipe)
    while scorer is not None and (command := pipe.receive(COMMANDS)) is not None:
        pipe.send(scorer.carry_out(command))
    end_group()


if __name__ == "__main__":
    main()
