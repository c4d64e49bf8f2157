"""`Hub(task=..., reward=...)`: your task as the section `[task]` that its scorers read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from echo_hub.sdk.carry import carry
from echo_hub.tasks.base import AnyTask, Prompt, Transcript
from echo_p2p.errors import ConfigError

Reward = Callable[[Prompt, str], float] | Callable[[Prompt, Transcript], float]
"""Reward of a finished answer to a prompt (of several turns: of the transcript); finite."""

_WITH_REWARD = '''
from echo_hub.tasks import make_task


class WithReward:
    """A task with another reward."""

    def __init__(self, options, seed):
        self._task = make_task(options["name"], options["options"], seed)

    def __getattr__(self, name):
        return getattr(self._task, name)

    def reward(self, prompt, answer):
        return {reward}(prompt, answer)
'''


def task_section(
    task: AnyTask | type[AnyTask] | str | None,
    reward: Reward | None,
    before: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """The section with this task, and this reward, in the place of what was there `before`.

    Args:
        task: a name as in run.toml; a class, made with `options` and `seed` if it takes them; or an
            instance, whose attributes are plain values.
        folder: where source is written that has no file of its own.
    """
    section = dict(before)
    if isinstance(task, str):
        section |= {"name": task}
        section |= {} if task == before.get("name") else {"options": {}}
    elif isinstance(task, type):
        section |= {"name": carry(task, folder), "options": before.get("own_options", {})}
    elif task is not None:
        section |= _of_instance(task, folder)
    if reward is not None:
        section = _rewarded(section, reward, folder)
    return section


def _of_instance(task: AnyTask, folder: Path) -> dict[str, Any]:
    kind = type(task)
    state: dict[str, Any] = dict(vars(task)) if hasattr(task, "__dict__") else {}
    place = carry(kind, folder)
    if not state:
        return {"name": place, "options": {}}
    try:
        plain: Any = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"this {kind.__name__} has attributes that are no plain values: {error}.",
            fix=f"Give the class itself, task={kind.__name__}, and let its __init__ make them.",
        ) from error
    if plain != state:
        raise ConfigError(
            f"this {kind.__name__} has attributes that JSON would change (a tuple, or keys that "
            "are no strings).",
            fix=f"Use lists and strings; or give the class itself, task={kind.__name__}.",
        )
    return {"name": _maker(place, kind.__name__, folder), "options": state}


def _maker(place: str, name: str, folder: Path) -> str:
    """A function that makes an instance with the attributes that it is given as options."""
    path = folder / f"own_{name.lower()}_made.py"
    path.write_text(
        '"""Makes the task as it was where the hub was started."""\n\n'
        "from echo_hub.own_code import load_place\n\n\n"
        "def make(options):\n"
        f"    kind = load_place({place!r})\n"
        "    task = kind.__new__(kind)\n"
        "    task.__dict__.update(options)\n"
        "    return task\n",
        encoding="utf-8",
    )
    return f"file:{path.resolve()}:make"


def _rewarded(section: dict[str, Any], reward: Reward, folder: Path) -> dict[str, Any]:
    place = carry(reward, folder)
    name = getattr(reward, "__name__", "reward")
    path = folder / f"own_reward_{name.lower()}.py"
    load = f"from echo_hub.own_code import load_place\n\n{name} = load_place({place!r})\n"
    path.write_text(load + _WITH_REWARD.format(reward=name), encoding="utf-8")
    inner = {"name": section["name"], "options": section.get("options", {})}
    return section | {"name": f"file:{path.resolve()}:WithReward", "options": inner}
