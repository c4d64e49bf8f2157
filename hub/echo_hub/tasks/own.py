"""`file:my_task.py` and `module:package.tasks`: an operator's own task, by its place.

The place is a file or an importable module, and after another colon the name of a class or function
in it that makes the task, called with `options` and `seed` if it takes them. Without that name the
module is the task: it has functions `prompt` and `reward`, and `reply` if it has turns of its own.

This is code of the operator's, run on the operator's machine, in scorer processes. It never goes to
a node.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from echo_hub.own_code import load_file, load_module, parted
from echo_hub.tasks.base import AnyTask
from echo_p2p.errors import ConfigError


def from_file(place: str, options: Mapping[str, Any], seed: int) -> AnyTask:
    """The task of `file:`; a relative path is relative to where the hub is started."""
    path, name = parted(place)
    return _task_of(load_file(path, named_by="task.name"), name, options, seed)


def from_module(place: str, options: Mapping[str, Any], seed: int) -> AnyTask:
    """The task of `module:`."""
    path, name = parted(place)
    return _task_of(load_module(path, named_by="task.name"), name, options, seed)


def _task_of(module: ModuleType, name: str, options: Mapping[str, Any], seed: int) -> AnyTask:
    place = module.__file__ or module.__name__
    task: Any = module
    taken: list[str] = []
    if name:
        make = getattr(module, name, None)
        if not callable(make):
            raise ConfigError(f"{place} has no class or function {name!r}.")
        takes = inspect.signature(make).parameters
        given = {"options": dict(options), "seed": seed}
        taken = [key for key in given if key in takes]
        try:
            task = make(**{key: given[key] for key in taken})
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{name} of {place} cannot be made: {type(error).__name__}: {error}"
            ) from error
    if options and "options" not in taken:
        raise ConfigError(f"{name or place} takes no options, so not {', '.join(options)}.")
    lacking = [one for one in ("prompt", "reward") if not callable(getattr(task, one, None))]
    if lacking:
        raise ConfigError(
            f"{name or 'the module'} of {place} has no {' and no '.join(lacking)}.",
            fix="A task has prompt(split, index) and reward(prompt, answer): see docs/tasks.md.",
        )
    own: AnyTask = task
    return own
