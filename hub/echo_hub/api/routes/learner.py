"""/api/v1/learner: every metric of the updates, and its course."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from echo_hub.api import models
from echo_hub.api.errors import ApiError
from echo_hub.api.site import TheView
from echo_hub.ledger import browse

router = APIRouter(tags=["learner"])

MOST_NAMES = 50


@router.get("/learner/metrics")
async def get_metrics(view: TheView) -> models.Metrics:
    """Names and newest values of the learner's metrics."""
    return await view.reader.read(_metrics)


@router.get("/learner/series")
async def get_series(
    view: TheView,
    name: Annotated[list[str], Query(min_length=1, max_length=MOST_NAMES)],
    first: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    points: Annotated[int, Query(ge=2, le=2000)] = 300,
) -> models.SeriesPage:
    """The course of some metrics over updates, in buckets of equally many updates, as few as fit
    into `points`."""
    return await view.reader.read(_series, name, first, last, points)


def _metrics(connection: Connection) -> models.Metrics:
    newest = browse.version_lines(connection, limit=1)
    return models.Metrics(
        names=browse.metric_names(connection),
        latest=newest[0].metrics if newest else {},
        versions=max(0, browse.count_versions(connection) - 1),
    )


def _series(
    connection: Connection, names: list[str], first: int, last: int | None, points: int
) -> models.SeriesPage:
    unknown = sorted(set(names) - set(browse.metric_names(connection)))
    if unknown:
        raise ApiError(
            404, "not_found", f"no update has a metric {unknown[0][:80]!r}.",
            "GET /api/v1/learner/metrics names those there are.",
        )  # fmt: skip
    newest = browse.version_lines(connection, limit=1)
    end = newest[0].version if newest else 0
    end = end if last is None else min(end, last)
    step = max(1, -(-(end - first + 1) // points))
    found = []
    for name in names:
        rows = browse.series(connection, name, first=first, last=end, step=step)
        found.append(
            models.Series(
                name=name,
                points=[
                    models.SeriesPoint(version=version, at=at, mean=mean, low=low, high=high)
                    for version, at, mean, low, high in rows
                ],
            )
        )
    return models.SeriesPage(step=step, series=found)
