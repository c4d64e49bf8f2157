"""/api/v1/versions: the chain of policy versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection

from echo_hub.api import models
from echo_hub.api.errors import missing
from echo_hub.api.overview import held_out, spread_facts
from echo_hub.api.site import TheView
from echo_hub.api.view import View
from echo_hub.ledger import browse
from echo_hub.ledger.browse import VersionLine
from echo_hub.ledger.decisions import read_pins
from echo_hub.ledger.guard import ROLLED_BACK_TO, withdrawn_versions
from echo_hub.publish.spread import Spread
from echo_hub.rollouts.evaluation import Evaluated

router = APIRouter(tags=["versions"])

MOST = 500


@router.get("/versions")
async def get_versions(
    view: TheView,
    before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 50,
) -> models.VersionPage:
    """Versions, newest first; `before` a version for the next page."""
    known = await view.reader.read(_read, before, limit)
    return models.VersionPage(
        total=known.total, newest=known.newest, versions=_facts(view, known, known.lines)
    )


@router.get("/versions/{version}")
async def get_version(
    view: TheView, version: Annotated[int, Path(ge=0, le=2**53)]
) -> models.VersionDetail:
    """One version."""
    known = await view.reader.read(_read, version + 1, 1)
    if not known.lines or known.lines[0].version != version:
        raise missing(f"version {version}", "GET /api/v1/versions lists those there are.")
    (facts,), line = _facts(view, known, known.lines), known.lines[0]
    found = known.evaluated.get(version)
    return models.VersionDetail(
        **facts.model_dump(),
        metrics=line.metrics,
        lags={int(lag): count for lag, count in line.lags.items()},
        heldout_tasks={}
        if found is None
        else {name: held_out(found, name) for name in found.tasks},
    )


async def version_facts(view: View, first: int, last: int) -> list[models.VersionFacts]:
    """The versions from `first` to `last`, the oldest first."""
    known = await view.reader.read(_read, last + 1, min(MOST, last - first + 1))
    lines = [line for line in reversed(known.lines) if line.version >= first]
    return _facts(view, known, lines)


@dataclass(frozen=True)
class _Known:
    total: int
    newest: int | None
    lines: Sequence[VersionLine]
    evaluated: Mapping[int, Evaluated]
    sizes: Mapping[int, browse.PublishedSize]
    withdrawn: frozenset[int]
    pins: frozenset[int]


def _read(connection: Connection, before: int | None, limit: int) -> _Known:
    newest = browse.version_lines(connection, limit=1)
    lines = browse.version_lines(connection, before=before, limit=limit)
    numbers = [line.version for line in lines]
    return _Known(
        total=browse.count_versions(connection),
        newest=newest[0].version if newest else None,
        lines=lines,
        evaluated={one.version: one for one in browse.evaluated(connection, numbers)},
        sizes=browse.published_sizes(connection, numbers),
        withdrawn=withdrawn_versions(connection),
        pins=read_pins(connection),
    )


def _facts(view: View, known: _Known, lines: Sequence[VersionLine]) -> list[models.VersionFacts]:
    kept = view.folder.kept()
    spreads = {one.version: one for one in view.spreads() if one.kind == "adapter"}
    return [_one(line, known, kept, spreads.get(line.version)) for line in lines]


def _one(
    line: VersionLine, known: _Known, kept: set[int], spread: Spread | None
) -> models.VersionFacts:
    size = known.sizes.get(line.version)
    back_to = line.metrics.get(ROLLED_BACK_TO)
    found = known.evaluated.get(line.version)
    whole = size.size if size is not None else None if spread is None else spread.size
    delta = None if size is None else size.delta_size
    return models.VersionFacts(
        version=line.version,
        at=line.at,
        published_at=line.published_at,
        size=whole,
        delta_size=delta,
        delta_ratio=delta / whole if delta is not None and whole else None,
        reward=line.metrics.get("reward_mean"),
        heldout=None if found is None else held_out(found),
        groups=sum(line.lags.values()),
        rolled_back_to=None if back_to is None else int(back_to),
        withdrawn=line.version in known.withdrawn,
        pinned=line.version in known.pins,
        kept=line.version in kept,
        spread=None if spread is None else spread_facts(spread),
    )
