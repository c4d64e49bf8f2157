"""What options of the built-in tasks have in common: how prompts are worded, how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from echo_p2p.toml import Strict, validate

Wording = Literal["full", "terse"]
S = TypeVar("S", bound=Strict)


class WordedOptions(Strict):
    wording: Wording = "full"
    """`full` states the rules and the form of an answer, for a language model; `terse` is the bare
    instance, for the small bases that know nothing else (`echo_hub.models.make_base`)."""


def read_options(task: str, options: Mapping[str, Any], model: type[S]) -> S:
    """`task.options` of run.toml, checked; ConfigError names the option that is wrong."""
    return validate(dict(options), model, source=f"task.options of {task}")
