"""Configurations that are known to learn, by name: what `init` and `demo` start from."""

from __future__ import annotations

from typing import Any, Literal

from echo_hub.config import RunConfig
from echo_p2p.toml import validate

Model = Literal["addmix3", "smollm2"]
MODELS: tuple[Model, ...] = ("addmix3", "smollm2")

_ADDMIX3: dict[str, Any] = {
    "base": {"path": "addmix3"},
    "task": {"name": "addmix3"},
    "sampling": {"max_new_tokens": 34, "group_size": 8},
    "learner": {"groups_per_update": 32, "learning_rate": 5e-4, "threads": 1},
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
        "threads": 1,
        "microbatch_tokens": 1024,
    },
    "lease": {"seconds": 300, "groups_per_request": 4},
    "evaluation": {"prompts": 96},
}


def preset(model: Model, *, run_id: str, overrides: dict[str, dict[str, Any]]) -> RunConfig:
    """The preset's configuration with `overrides` laid over it, section by section.

    ConfigError names the setting that is wrong.
    """
    sections: dict[str, Any] = {
        name: dict(values)
        for name, values in (_ADDMIX3 if model == "addmix3" else _SMOLLM2).items()
    }
    sections["run"] = {"id": run_id}
    for name, values in overrides.items():
        sections[name] = {**sections.get(name, {}), **values}
    return validate(sections, RunConfig, source=f"the preset {model}")
