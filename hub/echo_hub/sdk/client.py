"""`HubClient`: a running hub, operated from plain code, over its API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx
from pydantic import BaseModel

from echo_hub.api import models
from echo_hub.sdk import arriving, asks
from echo_hub.sdk.asks import Ask, StreamEvent

M = TypeVar("M", bound=BaseModel)


class HubClient:
    """A hub that is served somewhere, over HTTP.

    Args:
        url: as `echo-hub serve` shows it: `http://127.0.0.1:8420`.
        token: the secret in the file that `dashboard.token_file` names, if the hub wants one.
        timeout_s: seconds after which a request is given up.

    Every method raises `NetError` if the hub cannot be asked, and `ApiRefusedError` if it refuses:
    with `status`, `code`, a sentence, and what to do about it.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.url = asks.checked_url(url)
        self._token = token
        self._timeout_s = timeout_s
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=self.url + asks.BASE, headers=headers, timeout=timeout_s, trust_env=False
        )

    def overview(self) -> models.Overview:
        """Is it learning, is it healthy, what limits it: everything of the first page."""
        return self._ask(asks.overview())

    def health(self) -> models.Health:
        """Answers as long as the hub does; needs no token."""
        return self._ask(asks.health())

    def nodes(
        self,
        *,
        search: str = "",
        standing: models.Standing | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> models.NodePage:
        """A page of the run's nodes, the busiest first; at most 500."""
        return self._ask(asks.nodes(search, standing, offset, limit))

    def node(self, peer_id: str) -> models.NodeDetail:
        """One node."""
        return self._ask(asks.node(peer_id))

    def versions(self, *, before: int | None = None, limit: int = 50) -> models.VersionPage:
        """Versions, the newest first."""
        return self._ask(asks.versions(before, limit))

    def version(self, number: int) -> models.VersionDetail:
        """One version, with every metric of its update."""
        return self._ask(asks.version(number))

    def rollouts(
        self,
        order: asks.Order = "newest",
        *,
        search: str = "",
        state: str | None = None,
        reason: str | None = None,
        node: str | None = None,
        version: int | None = None,
        split: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> models.GroupPage:
        """Groups of rollouts: the newest, or the best or worst by reward; `next_before` goes on."""
        return self._ask(
            asks.rollouts(
                order,
                q=search or None,
                state=state,
                reason=reason,
                node=node,
                version=version,
                split=split,
                before=before,
                limit=limit,
            )
        )

    def group(self, number: int) -> models.GroupDetail:
        """A group's rollouts, token by token with their log-probabilities (nats), and its audit."""
        return self._ask(asks.group(number))

    def metrics(self) -> models.Metrics:
        """The names of the learner's metrics, and their newest values."""
        return self._ask(asks.metrics())

    def series(
        self, names: Sequence[str], *, first: int = 0, last: int | None = None, points: int = 300
    ) -> models.SeriesPage:
        """Metrics over versions, in at most so many buckets."""
        return self._ask(asks.series(names, first, last, points))

    def planner(self) -> models.PlannerFacts:
        """What the capacity rule predicts beside what is measured."""
        return self._ask(asks.planner())

    def events(
        self, *, before: int | None = None, limit: int = 100, kinds: Sequence[str] | None = None
    ) -> models.EventPage:
        """What happened, the newest first."""
        return self._ask(asks.events(before, limit, kinds))

    # --- doing: `done` is false if it waits for the end of the update in hand -------------------

    def ban(self, peer_id: str, why: str | None = None) -> models.Done:
        """Shut a node out, and tell it why; what waits of it is dropped."""
        return self._ask(asks.ban(peer_id, why))

    def unban(self, peer_id: str) -> models.Done:
        """Let a banned node in again, as a newcomer."""
        return self._ask(asks.unban(peer_id))

    def quarantine(self, peer_id: str, why: str | None = None) -> models.Done:
        """Let a node work on, audit all of it, and train on nothing of it."""
        return self._ask(asks.quarantine(peer_id, why))

    def release(self, peer_id: str) -> models.Done:
        """End a node's quarantine."""
        return self._ask(asks.release(peer_id))

    def annotate(self, peer_id: str, *, name: str = "", note: str = "") -> models.Done:
        """Your own words for a node; both empty takes them away."""
        return self._ask(asks.annotate(peer_id, name, note))

    def pause(self, why: str | None = None) -> models.Done:
        """Make no more updates until the run is resumed; nodes stay connected."""
        return self._ask(asks.pause(why))

    def resume(self) -> models.Done:
        """Let a paused run go on."""
        return self._ask(asks.resume())

    def publish(self) -> models.Done:
        """Publish the learner's version, though it is not due."""
        return self._ask(asks.publish())

    def roll_back(self, version: int) -> models.Done:
        """Go on from the weights of a published version, under a new number."""
        return self._ask(asks.roll_back(version))

    def pin(self, version: int) -> models.Done:
        """Keep a version's checkpoint for good."""
        return self._ask(asks.pin(version))

    def unpin(self, version: int) -> models.Done:
        """Keep a version's checkpoint no longer than others."""
        return self._ask(asks.unpin(version))

    def export(self, out: str | Path, *, version: int | None = None, merge: bool = False) -> Path:
        """Write a version, as a PEFT adapter or merged with its base, to a new folder here.

        Args:
            version: the newest that the run keeps, if none is given.
            merge: a whole model with its tokenizer, in place of the adapter.
        """
        if version is None:
            version = arriving.newest_kept(self.versions(limit=500))
        path, query = arriving.asked(version, merge)
        patience = httpx.Timeout(self._timeout_s, read=arriving.EXPORT_S)
        with closing(arriving.Arriving(out)) as here:
            try:
                with self._http.stream("GET", path, params=query, timeout=patience) as response:
                    if response.status_code >= 400:
                        raise asks.refusal(response.status_code, response.read())
                    for piece in response.iter_bytes(arriving.PIECE):
                        here.write(piece)
            except httpx.HTTPError as error:
                raise asks.unreachable(self.url, error) from error
            return here.unpack()

    # --- beneath ------------------------------------------------------------------------------

    def watch(self, after: int | None = None) -> Iterator[StreamEvent]:
        """What happens from now on, as it happens, until the hub ends or you stop asking.

        Args:
            after: the `number` of the last event that was seen, to go on behind it.
        """
        params = {} if after is None else {"last_event_id": after}
        try:
            with self._http.stream("GET", "/events", params=params, timeout=None) as response:
                if response.status_code >= 400:
                    raise asks.refusal(response.status_code, response.read())
                lines = asks.Lines()
                for line in response.iter_lines():
                    if (event := lines.take(line)) is not None:
                        yield event
        except httpx.HTTPError as error:
            raise asks.unreachable(self.url, error) from error

    def _ask(self, ask: Ask[M]) -> M:
        headers = {} if ask.method == "GET" or self._token else self._unguarded()
        response = self._request(ask, headers)
        return ask.read(response.status_code, response.content)

    def _unguarded(self) -> dict[str, str]:
        """What a hub that wants no token wants in its place, so that no web page can act."""
        asked = asks.session()
        response = self._request(asked, {})
        return asks.csrf_header(asked.read(response.status_code, response.content))

    def _request(self, ask: Ask[M], headers: dict[str, str]) -> httpx.Response:
        try:
            return self._http.request(
                ask.method, ask.path, params=ask.query, json=ask.body, headers=headers
            )
        except httpx.HTTPError as error:
            raise asks.unreachable(self.url, error) from error

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> HubClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
