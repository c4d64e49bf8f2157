"""What came to be: versions, metrics, the planner beside them, events."""

from __future__ import annotations

from typing import Any, Literal

from echo_hub.api.models.base import Model
from echo_hub.api.models.run import HeldOut, SpreadFacts


class VersionFacts(Model):
    version: int
    at: float
    published_at: float | None
    size: int | None
    delta_size: int | None
    delta_ratio: float | None
    """Bytes of the delta over those of the snapshot."""
    reward: float | None
    heldout: HeldOut | None
    groups: int
    """Groups that the update consumed."""
    rolled_back_to: int | None
    withdrawn: bool
    pinned: bool
    kept: bool
    """Its checkpoint is on disk: it can be exported, and gone back to."""
    spread: SpreadFacts | None


class VersionPage(Model):
    total: int
    newest: int | None
    versions: list[VersionFacts]
    """Newest first."""


class VersionDetail(VersionFacts):
    metrics: dict[str, float]
    lags: dict[int, int]
    heldout_tasks: dict[str, HeldOut]


class Metrics(Model):
    names: list[str]
    latest: dict[str, float]
    versions: int


class SeriesPoint(Model):
    """One bucket of updates: its first version, and mean, least and greatest of the metric."""

    version: int
    at: float
    mean: float
    low: float
    high: float


class Series(Model):
    name: str
    points: list[SeriesPoint]


class SeriesPage(Model):
    step: int
    """Updates in a bucket."""
    series: list[Series]


class Comparison(Model):
    name: str
    unit: str
    predicted: float | None
    measured: float | None


class PlacedNode(Model):
    """A node as the controller sees it. Rates in rollouts a second, at full load; times in s."""

    node: str
    state: Literal["working", "trial", "standby", "too slow"]
    rate: float
    price: float
    """Money an hour; 0 of a volunteer."""
    since_s: float | None
    """How long it has been so."""
    turn_s: float | None
    """Until a volunteer on standby may expect its turn."""


class ActivationFacts(Model):
    """Who works and who is on standby, by the controller. With `advise`, all work in truth."""

    mode: Literal["advise", "on", "off"]
    sentence: str
    needed: float
    wanted: float
    rate: float
    active: int
    standby: int
    on_trial: int
    money: float
    missing: Literal["", "rate", "latency"]
    wish: str
    """What the operator's tools were asked for last; empty if nothing was."""
    wished_at: float | None
    outcome: str
    trouble: str
    """What is wrong with the file of prices."""
    nodes: list[PlacedNode]
    """The first ones."""


class PlannerFacts(Model):
    """The capacity rule with what is measured now, beside what happens. docs/planning.md."""

    ready: bool
    sentence: str
    nodes: int
    nodes_needed: int | None
    """Nodes of the measured mean rate that would keep the learner busy."""
    limit: str
    compared: list[Comparison]
    activation: ActivationFacts | None = None


class EventFacts(Model):
    id: int
    at: float
    kind: str
    sentence: str
    detail: dict[str, Any]


class UpdateFacts(Model):
    """An update, as it is told when it is made. Times in seconds, lags in versions."""

    version: int
    reward: float
    lag_mean: float
    lag_max: int
    waited_s: float
    train_s: float
    period_s: float


class EventPage(Model):
    events: list[EventFacts]
    """Newest first."""
    next_before: int | None
