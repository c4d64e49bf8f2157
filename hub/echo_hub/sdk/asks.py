"""Every request that a client makes of a hub's API, as plain values. Pure.

One function a request, used by the synchronous client and the asynchronous one alike. What they
answer with are the models of `echo_hub.api.models`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from echo_hub.api import models
from echo_p2p.errors import ApiRefusedError, ConfigError, NetError

M = TypeVar("M", bound=BaseModel)

Method = Literal["GET", "POST", "PUT"]
Order = Literal["newest", "best", "worst"]
BASE = "/api/v1"


@dataclass(frozen=True)
class Ask(Generic[M]):
    """A request, and what a good answer to it is."""

    answer: type[M]
    path: str
    method: Method = "GET"
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def query(self) -> dict[str, Any]:
        """The parameters that are given."""
        return {key: value for key, value in self.params.items() if value is not None}

    def read(self, status: int, content: bytes) -> M:
        """The answer in a response; ApiRefusedError if it is a refusal."""
        if status >= 400:
            raise refusal(status, content)
        try:
            return self.answer.model_validate_json(content)
        except ValidationError as error:
            raise NetError(
                f"{self.path} answered what this client does not know: {error}",
                fix="Are the hub and this program of the same version of echo-p2p?",
            ) from error


def refusal(status: int, content: bytes) -> ApiRefusedError:
    """What a hub's refusal says."""
    try:
        problem = models.Problem.model_validate_json(content)
    except ValidationError:
        text = content[:200].decode(errors="replace")
        return ApiRefusedError(
            f"the hub answered {status}: {text}",
            status=status,
            code="unknown",
            fix="Is this the address of a hub's dashboard?",
        )
    fix = problem.fix
    if status == 401 and not fix:
        fix = (
            "Give the token: HubClient(url, token), from the file that dashboard.token_file names."
        )
    return ApiRefusedError(problem.message, status=status, code=problem.code, fix=fix)


def checked_url(url: str) -> str:
    """A hub's address without the slash at its end; ConfigError if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{url!r} is no address of a hub.",
            fix="Write it as `echo-hub serve` shows it, like http://127.0.0.1:8420.",
        )
    return url.rstrip("/")


def unreachable(url: str, error: Exception) -> NetError:
    """A hub that could not be asked."""
    return NetError(
        f"{url} cannot be asked: {str(error) or type(error).__name__}.",
        fix="Is the hub served, and is this the address that it shows as its dashboard?",
    )


@dataclass(frozen=True)
class StreamEvent:
    """Something that happened while it was watched: `kind` is `overview`, `version`, `event`, ...;
    `number` can be given to `watch` to go on after it."""

    kind: str
    number: int | None
    data: Any


class Lines:
    """Server-sent events out of the lines of a stream."""

    def __init__(self) -> None:
        self._kind = "message"
        self._number: int | None = None
        self._data: list[str] = []

    def take(self, line: str) -> StreamEvent | None:
        """The event that ends with this line, if one does."""
        if not line:
            event = StreamEvent(
                self._kind, self._number, json.loads("\n".join(self._data) or "null")
            )
            whole = bool(self._data)
            self._kind, self._data = "message", []
            return event if whole else None
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            self._kind = value
        elif key == "data":
            self._data.append(value)
        elif key == "id" and value.isdecimal():
            self._number = int(value)
        return None


# --- reading --------------------------------------------------------------------------------------


def overview() -> Ask[models.Overview]:
    return Ask(models.Overview, "/overview")


def session() -> Ask[models.Session]:
    return Ask(models.Session, "/session")


def csrf_header(found: models.Session) -> dict[str, str]:
    """The header that goes with a request which changes something, without a token."""
    return {} if found.csrf is None else {"X-CSRF-Token": found.csrf}


def health() -> Ask[models.Health]:
    return Ask(models.Health, "/health")


def nodes(
    search: str, standing: models.Standing | None, offset: int, limit: int
) -> Ask[models.NodePage]:
    params = {"search": search or None, "standing": standing, "offset": offset, "limit": limit}
    return Ask(models.NodePage, "/nodes", params=params)


def node(peer_id: str) -> Ask[models.NodeDetail]:
    return Ask(models.NodeDetail, f"/nodes/{quote(peer_id, safe='')}")


def versions(before: int | None, limit: int) -> Ask[models.VersionPage]:
    return Ask(models.VersionPage, "/versions", params={"before": before, "limit": limit})


def version(number: int) -> Ask[models.VersionDetail]:
    return Ask(models.VersionDetail, f"/versions/{number}")


def rollouts(order: Order, **filters: Any) -> Ask[models.GroupPage]:
    return Ask(models.GroupPage, "/rollouts", params={"order": order, **filters})


def group(number: int) -> Ask[models.GroupDetail]:
    return Ask(models.GroupDetail, f"/rollouts/{number}")


def metrics() -> Ask[models.Metrics]:
    return Ask(models.Metrics, "/learner/metrics")


def series(
    names: Sequence[str], first: int, last: int | None, points: int
) -> Ask[models.SeriesPage]:
    params = {"name": list(names), "first": first, "last": last, "points": points}
    return Ask(models.SeriesPage, "/learner/series", params=params)


def planner() -> Ask[models.PlannerFacts]:
    return Ask(models.PlannerFacts, "/planner")


def events(before: int | None, limit: int, kinds: Sequence[str] | None) -> Ask[models.EventPage]:
    params = {"before": before, "limit": limit, "kind": list(kinds) if kinds else None}
    return Ask(models.EventPage, "/events/history", params=params)


# --- doing ----------------------------------------------------------------------------------------


def _do(path: str, body: Mapping[str, Any] | None = None) -> Ask[models.Done]:
    return Ask(models.Done, path, method="POST", body=body)


def ban(peer_id: str, why: str | None) -> Ask[models.Done]:
    return _do(f"/nodes/{quote(peer_id, safe='')}/ban", {} if why is None else {"why": why})


def unban(peer_id: str) -> Ask[models.Done]:
    return _do(f"/nodes/{quote(peer_id, safe='')}/unban")


def quarantine(peer_id: str, why: str | None) -> Ask[models.Done]:
    return _do(f"/nodes/{quote(peer_id, safe='')}/quarantine", {} if why is None else {"why": why})


def release(peer_id: str) -> Ask[models.Done]:
    return _do(f"/nodes/{quote(peer_id, safe='')}/release")


def annotate(peer_id: str, name: str, note: str) -> Ask[models.Done]:
    path = f"/nodes/{quote(peer_id, safe='')}/annotation"
    return Ask(models.Done, path, method="PUT", body={"name": name, "note": note})


def pause(why: str | None) -> Ask[models.Done]:
    return _do("/run/pause", {} if why is None else {"why": why})


def resume() -> Ask[models.Done]:
    return _do("/run/resume")


def publish() -> Ask[models.Done]:
    return _do("/run/publish")


def roll_back(number: int) -> Ask[models.Done]:
    return _do(f"/versions/{number}/rollback")


def pin(number: int) -> Ask[models.Done]:
    return _do(f"/versions/{number}/pin")


def unpin(number: int) -> Ask[models.Done]:
    return _do(f"/versions/{number}/unpin")
