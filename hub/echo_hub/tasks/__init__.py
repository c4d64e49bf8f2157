"""Tasks by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from echo_hub.tasks.base import AnyTask, MultiTurnTask, Prompt, Split, Task, Transcript, Turns
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.errors import ConfigError


def _addmix3(options: Mapping[str, Any], seed: int) -> Task:
    from echo_hub.tasks.addmix import AddMix

    _no_options("addmix3", options)
    return AddMix(seed)


def _few_shot_addition(options: Mapping[str, Any], seed: int) -> Task:
    from echo_hub.tasks.few_shot import FewShotAddition

    _no_options("few-shot-addition", options)
    return FewShotAddition(seed)


def _no_options(name: str, options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"the task {name!r} has no options, so not {', '.join(options)}.")


def _with_options(module: str, name: str) -> Callable[[Mapping[str, Any], int], AnyTask]:
    """A task class of this package that reads its options itself."""

    def make(options: Mapping[str, Any], seed: int) -> AnyTask:
        task: AnyTask = _class_of(module, name)(options, seed)
        return task

    return make


__all__ = [
    "TASK_NAMES",
    "AnyTask",
    "MultiTurnTask",
    "Prompt",
    "Split",
    "Task",
    "Transcript",
    "Turns",
    "draw",
    "make_task",
    "rng_of",
]  # fmt: skip

_TASKS: dict[str, Callable[[Mapping[str, Any], int], AnyTask]] = {
    "addmix3": _addmix3,
    "few-shot-addition": _few_shot_addition,
    "sokoban": _with_options("sokoban", "Sokoban"),
    "wordle": _with_options("wordle", "Wordle"),
    "knights-knaves": _with_options("knights_knaves", "KnightsKnaves"),
    "mathematics": _with_options("mathematics", "Mathematics"),
    "countdown": _with_options("countdown", "Countdown"),
    "guess-number": _with_options("guess_number", "GuessNumber"),
}
TASK_NAMES = tuple(_TASKS)
"""The tasks that are known by a name alone."""
_FAMILIES: dict[str, tuple[str, str, str]] = {
    "reasoning-gym": ("dataset", "reasoning_gym", "ReasoningGym"),
    "dataset": ("file or name", "dataset", "Dataset"),
    "textarena": ("game", "textarena", "TextArena"),
    "verifiers": ("package", "verifiers_tasksets", "Verifiers"),
    "file": ("your_task.py", "own", "from_file"),
    "module": ("your.tasks", "own", "from_module"),
}
"""Tasks of other packages and files, as `family:name`: what the name is of; module; maker."""


def make_task(name: str, options: Mapping[str, Any], seed: int) -> AnyTask:
    """The task of that name; ConfigError for an unknown one says which exist.

    Args:
        options: `task.options` of run.toml.
        seed: `run.seed`; another seed gives other prompts.
    """
    family, colon, member = name.partition(":")
    if colon and family in _FAMILIES:
        _, module, kind = _FAMILIES[family]
        task: AnyTask = _class_of(module, kind)(member, options, seed)
        return task
    if name not in _TASKS:
        families = [f"{family}:<{what}>" for family, (what, _, _) in _FAMILIES.items()]
        raise ConfigError(
            f"there is no task {name!r}.", fix=f"There are: {', '.join([*_TASKS, *families])}."
        )
    return _TASKS[name](options, seed)


def _class_of(module: str, name: str) -> Any:
    """A class of this package; its module, and what that needs, is loaded when it is wanted."""
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
