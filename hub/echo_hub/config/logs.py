"""`[logs]` and `[trackers]`: what is written down of a run beside its ledger."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from echo_p2p.toml import Strict

TrackerName = Literal["wandb", "trackio", "tensorboard"]


class LogsSection(Strict):
    level: Literal["debug", "info", "warning", "error"] = "warning"
    """Least weight of a line that is written. `info` has a line for each group that is left out,
    `debug` one for each step of each group, with its trace id."""
    format: Literal["auto", "human", "json"] = "auto"
    """`auto` writes for people on a terminal, and elsewhere one JSON object a line."""


class TrackersSection(Strict):
    use: tuple[TrackerName, ...] = ()
    """Experiment trackers that get every metric of every update: wandb, trackio, tensorboard. Each
    needs its package: pip install 'echo-p2p[wandb]' and so on."""
    project: Annotated[str, Field(max_length=128)] = "echo-p2p"
    """Project (wandb, trackio) that the run, by its id, is part of."""
    offline: bool = False
    """wandb writes to the run's folder alone, to be uploaded with `wandb sync`."""

    @field_validator("use")
    @classmethod
    def _each_once(cls, value: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
        if len(set(value)) < len(value):
            raise ValueError("name each tracker once")
        return value
