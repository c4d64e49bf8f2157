"""Tasks by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from echo_hub.tasks.base import AnyTask, Task
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
        task: AnyTask = getattr(importlib.import_module(f"{__name__}.{module}"), name)(
            options, seed
        )
        return task

    return make


_TASKS: dict[str, Callable[[Mapping[str, Any], int], AnyTask]] = {
    "addmix3": _addmix3,
    "few-shot-addition": _few_shot_addition,
    "sokoban": _with_options("sokoban", "Sokoban"),
    "wordle": _with_options("wordle", "Wordle"),
    "knights-knaves": _with_options("knights_knaves", "KnightsKnaves"),
    "mathematics": _with_options("mathematics", "Mathematics"),
    "countdown": _with_options("countdown", "Countdown"),
}
_REASONING_GYM = "reasoning-gym:"
_DATASET = "dataset:"


def make_task(name: str, options: Mapping[str, Any], seed: int) -> AnyTask:
    """The task of that name; ConfigError for an unknown one says which exist.

    Args:
        options: `task.options` of run.toml.
        seed: `run.seed`; another seed gives other prompts.
    """
    if name.startswith(_REASONING_GYM):
        from echo_hub.tasks.reasoning_gym import ReasoningGym

        return ReasoningGym(name.removeprefix(_REASONING_GYM), options, seed)
    if name.startswith(_DATASET):
        from echo_hub.tasks.dataset import Dataset

        return Dataset(name.removeprefix(_DATASET), options, seed)
    if name not in _TASKS:
        known = ", ".join([*_TASKS, f"{_REASONING_GYM}<dataset>", f"{_DATASET}<file or name>"])
        raise ConfigError(f"there is no task {name!r}.", fix=f"There are: {known}.")
    return _TASKS[name](options, seed)
