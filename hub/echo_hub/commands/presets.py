"""Configurations that are known to learn, by name: what `init` and `demo` start from."""

from __future__ import annotations

from typing import Any, Literal, get_args

from echo_hub.config import RunConfig
from echo_p2p.errors import ConfigError
from echo_p2p.toml import validate

SmallBase = Literal["sokoban", "wordle", "knights-knaves", "mathematics", "countdown"]
SMALL_BASES: tuple[SmallBase, ...] = get_args(SmallBase)
"""Bases that are made for a task, and have its name (`echo_hub.models.habits`)."""

Model = Literal["addmix3", "smollm2"] | SmallBase
MODELS: tuple[Model, ...] = ("addmix3", "smollm2", *SMALL_BASES)

_ADDMIX3: dict[str, Any] = {
    "base": {"path": "addmix3"},
    "task": {"name": "addmix3"},
    "sampling": {"max_new_tokens": 34, "group_size": 8},
    "learner": {"groups_per_update": 32, "threads": 1, "microbatch_tokens": 2048},
    "publish": {"chunk_bytes": 65536},
    "lease": {"seconds": 60, "groups_per_request": 16},
    "evaluation": {"prompts": 256},
}

_SMOLLM2: dict[str, Any] = {
    "base": {"path": "smollm2"},
    "task": {"name": "few-shot-addition"},
    "sampling": {"max_new_tokens": 8, "group_size": 8},
    "learner": {
        "groups_per_update": 8,
        "learning_rate": 3e-4,
        "rate_coupling": 0.0,  # as it was measured, with a lag of up to 2
        "threads": 1,
        "microbatch_tokens": 1024,
    },
    "lease": {"seconds": 300, "groups_per_request": 4},
    "evaluation": {"prompts": 96},
}


# Of language models with a chat template: answers have room for some reasoning.
_SPOKEN: dict[str, dict[str, int]] = {
    "sokoban": {"max_new_tokens": 3072, "turn_tokens": 640},
    "wordle": {"max_new_tokens": 3072, "turn_tokens": 448},
    "knights-knaves": {"max_new_tokens": 1024},
    "mathematics": {"max_new_tokens": 1024},
    "countdown": {"max_new_tokens": 1024},
}


def _small_base(task: SmallBase) -> dict[str, Any]:
    from echo_hub.models.habits import RECIPES

    recipe = RECIPES[task]
    sampling = {"max_new_tokens": recipe.max_new_tokens, "group_size": 8}
    if recipe.turn_tokens:
        sampling["turn_tokens"] = recipe.turn_tokens
    return {
        **_ADDMIX3,
        "base": {"path": "base"},
        "task": {"name": task, "options": dict(recipe.options)},
        "sampling": sampling,
        # as they were measured
        "learner": {**_ADDMIX3["learner"], "learning_rate": 5e-4, "rate_coupling": 0.0},
        "evaluation": {"prompts": 128},
    }


def spoken(task: str) -> dict[str, dict[str, Any]]:
    """The sections for a built-in task with a language model that has a chat template."""
    if task not in _SPOKEN:
        raise ConfigError(
            f"there is no preset for the task {task!r} with a language model.",
            fix=f"There are: {', '.join(_SPOKEN)}. Others are set in run.toml.",
        )
    return {"task": {"name": task, "template": "chat"}, "sampling": dict(_SPOKEN[task])}


def preset(model: Model, *, run_id: str, overrides: dict[str, dict[str, Any]]) -> RunConfig:
    """The preset's configuration with `overrides` laid over it, section by section.

    ConfigError names the setting that is wrong.
    """
    if model == "addmix3":
        chosen = _ADDMIX3
    else:
        chosen = _SMOLLM2 if model == "smollm2" else _small_base(model)
    sections: dict[str, Any] = {name: dict(values) for name, values in chosen.items()}
    sections["run"] = {"id": run_id}
    for name, values in overrides.items():
        sections[name] = {**sections.get(name, {}), **values}
    return validate(sections, RunConfig, source=f"the preset {model}")
