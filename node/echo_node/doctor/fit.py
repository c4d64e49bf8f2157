"""Whether a model fits on this machine, and how it would be run; no weights are fetched for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.doctor.way import Way
from echo_node.fit import Misfit, Plan, Software, Wishes, plan
from echo_node.hardware.base import Machine
from echo_node.limits.book import Book
from echo_node.limits.wishes import wishes_for
from echo_node.presets import PRESETS, find_preset
from echo_node.shapes import Shape, read_shape, shape_of
from echo_p2p.errors import ConfigError

NAME = "fit"
CONTEXT = 2048
"""Tokens of prompt and answer assumed where no run says it."""


@dataclass(frozen=True)
class Facts:
    """A model's shape and how it will be used; or `unknown`, why there is none to judge."""

    model: str
    shape: Shape | None
    wishes: Wishes
    machine: Machine
    software: Software
    unknown: ConfigError | None = None


def judge(facts: Facts | None) -> list[Finding]:
    """None: no model was named, and the run's is not known."""
    if facts is None:
        said = "no model to judge: name one with --fit, or let the hub be asked."
        return [Finding(check=NAME, severity="note", said=said)]
    if facts.shape is None:
        assert facts.unknown is not None
        fix = facts.unknown.fix or "Name a folder with a config.json."
        return [Finding(check=NAME, severity="error", said=facts.unknown.message, fix=fix)]
    made = plan(facts.shape, facts.wishes, facts.machine, facts.software)
    size = f"{facts.model} ({facts.shape.parameters / 1e9:.2f} billion parameters)"
    if isinstance(made, Misfit):
        said = f"{size} does not fit: {made.sentence}"
        return [Finding(check=NAME, severity="error", said=said, fix=made.fix)]
    return [Finding(check=NAME, severity="ok", said=f"{size} fits. {made.sentence}{_slow(made)}")]


def _slow(made: Plan) -> str:
    return " It will be slow there." if made.device == "cpu" and made.need.weights > 4e9 else ""


def named(model: str) -> Shape:
    """The shape of a model named by people: a folder, a config.json, or a known name."""
    preset = find_preset(model)
    if preset is not None:
        return preset.shape
    if Path(model).exists():
        return read_shape(Path(model))
    known = ", ".join(one.name for one in PRESETS)
    raise ConfigError(
        f"{model} is neither a folder nor a model known here.", fix=f"Known: {known}."
    )


def of_the_run(way: Way) -> Shape | None:
    """The shape of the base that the hub described; None if it was not reached."""
    if way.config is None:
        return None
    try:
        return shape_of(json.loads(way.config), source="the run's config.json")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the run's config.json is not valid JSON: {error}.") from error


async def gather(situation: Situation) -> Facts | None:
    question, machine = situation.question, await situation.machine()
    book, way = situation.book(), await situation.way()
    run = None if way is None or way.answer is None else way.answer.run
    context = question.context or (run.context if run else CONTEXT)
    wishes = Wishes(context=context)
    if run is not None and question.model is None:
        wishes = Wishes(context=context, group_size=run.group_size, dtype=run.dtype)
    if isinstance(book, Book):
        wishes = wishes_for(book.limits, machine, wishes)
    shape: Shape | None = None
    unknown: ConfigError | None = None
    try:
        if question.model is not None:
            shape = named(question.model)
        elif way is not None:
            shape = of_the_run(way)
    except ConfigError as error:
        unknown = error
    if shape is None and unknown is None:
        return None
    model = question.model or "the run's base model"
    return Facts(model, shape, wishes, machine, situation.software(), unknown)


async def _run(situation: Situation) -> list[Finding]:
    return judge(await gather(situation))


CHECK = Check(NAME, "Model fit", _run)
