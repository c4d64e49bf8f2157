"""Writes a `RunConfig` as the commented `run.toml` that `echo-hub init` leaves for the operator.

The comments are the docstrings of the fields, so they cannot say something else than the code.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

from pydantic import BaseModel

from echo_hub.config import RunConfig

_HEADER = """\
# A run of echo-p2p. Serve it with: echo-hub serve <this file>
# Every key is here with its value in force; a key that is taken out has its default.
"""


def render_config(config: RunConfig) -> str:
    """The whole configuration as TOML text; parsing it gives an equal configuration."""
    lines = [_HEADER]
    for section in type(config).model_fields:
        value: BaseModel | tuple[BaseModel, ...] = getattr(config, section)
        if isinstance(value, tuple):
            for model in value:
                lines += _section(f"[[{section}]]", model)
        elif section != "task" or not config.tasks:
            lines += _section(f"[{section}]", value)
    return "\n".join(lines)


def _section(header: str, model: BaseModel) -> list[str]:
    lines = [header]
    for name, field in type(model).model_fields.items():
        comment = " ".join((field.description or "").split())
        lines += textwrap.wrap(comment, 96, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"{name} = {_toml(getattr(model, name))}")
    return [*lines, ""]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        items = (f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(items) + " }" if value else "{}"
    raise TypeError(f"{type(value).__name__} has no place in a configuration")
