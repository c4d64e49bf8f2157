"""Looks what is new in the run and posts it to the feed, and sees to the alerts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import trio
from pydantic import TypeAdapter
from sqlalchemy import Connection

from echo_hub.api import models
from echo_hub.api.alarms import Alarms, Readings
from echo_hub.api.delivery import Delivery
from echo_hub.api.feed import Feed
from echo_hub.api.overview import OverviewMaker, held_out, in_brief
from echo_hub.api.routes.events import event_facts
from echo_hub.api.routes.nodes import just_joined, node_facts
from echo_hub.api.routes.versions import version_facts
from echo_hub.api.view import SPAN_S, View, keys_in_session
from echo_hub.ledger import browse
from echo_hub.ledger.browse import EventLine
from echo_hub.ledger.decisions import read_annotations
from echo_hub.rollouts.evaluation import Evaluated
from echo_p2p.errors import LedgerError

log = logging.getLogger(__name__)

LOOK_S = 0.5
OVERVIEW_S = 1.0
NODES_S = 2.0
MOST_NODES = 100
MOST_EVENTS = 500

_NODES = TypeAdapter(list[models.NodeFacts])
_ALERTS = TypeAdapter(list[models.Alert])


class Watcher:
    """One hub's eye on itself."""

    def __init__(
        self, view: View, feed: Feed, overview: OverviewMaker, alarms: Alarms, delivery: Delivery
    ) -> None:
        self._view = view
        self._feed = feed
        self._overview = overview
        self._alarms = alarms
        self._delivery = delivery
        self._event = -1
        self._version = view.snapshot().version
        self._published = view.snapshot().published
        self._evaluated: set[int] | None = None
        self._told: list[models.Alert] = []
        self._here: set[bytes] = set()
        self._overview_at = self._nodes_at = -math.inf

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._look()
            except LedgerError as error:  # the hub itself ends of it, if it lasts
                log.warning("the dashboard cannot read the ledger: %s", error.message)
            await trio.sleep(LOOK_S)

    async def _look(self) -> None:
        now = trio.current_time()
        events, evaluated = await self._view.reader.read(_news, self._event)
        self._tell_events(events)
        self._tell_evaluations(evaluated)
        await self._tell_versions()
        await self._look_for_alerts(now, events)
        if not self._feed.watchers:
            return
        if now - self._overview_at >= OVERVIEW_S:
            self._overview_at = now
            overview = in_brief(await self._overview.get())
            self._feed.post("overview", overview.model_dump_json().encode())
        if now - self._nodes_at >= NODES_S:
            self._nodes_at = now
            await self._tell_nodes()

    def _tell_events(self, events: Sequence[EventLine]) -> None:
        first = self._event < 0
        for line in events:
            self._event = line.id
            if not first:
                self._feed.post("event", event_facts(line).model_dump_json().encode())
        self._event = max(self._event, 0)

    def _tell_evaluations(self, evaluated: Sequence[Evaluated]) -> None:
        known, self._evaluated = self._evaluated, {one.version for one in evaluated}
        for one in evaluated:
            if known is not None and one.version not in known:
                self._feed.post("evaluation", held_out(one).model_dump_json().encode())

    async def _tell_versions(self) -> None:
        snapshot = self._view.snapshot()
        first = self._version + 1
        if snapshot.published != self._published and snapshot.published is not None:
            first = min(first, max(snapshot.published, first - 1))
        if first > snapshot.version:
            return
        made = await version_facts(self._view, first, snapshot.version)
        updates = {one.version: one for one in self._view.learner().recent}
        for facts in made:
            self._feed.post("version", facts.model_dump_json().encode())
            update = updates.get(facts.version)
            if update is not None and facts.version > self._version:
                told = models.UpdateFacts(
                    version=update.version,
                    reward=update.reward,
                    lag_mean=update.lag_mean,
                    lag_max=update.lag_max,
                    waited_s=update.waited_s,
                    train_s=update.train_s,
                    period_s=update.period_s,
                )
                self._feed.post("update", told.model_dump_json().encode())
        self._version, self._published = snapshot.version, snapshot.published

    async def _tell_nodes(self) -> None:
        here = keys_in_session(self._view)
        moved = list(here ^ self._here)[:MOST_NODES]  # came or went
        self._here ^= set(moved)
        keys = list({*moved, *self._view.front.take_changed(MOST_NODES)})
        if not keys:
            return
        new = just_joined(self._view, moved)
        _, lines = await self._view.reader.read(
            browse.node_lines, keys=keys, limit=len(keys), also=new
        )
        words = await self._view.reader.read(read_annotations)
        facts = [node_facts(self._view, line, words.get(line.key)) for line in lines]
        self._feed.post("nodes", _NODES.dump_json(facts))

    async def _look_for_alerts(self, now: float, events: Sequence[EventLine]) -> None:
        view, learner = self._view, self._view.learner()
        recent = view.samples.over(SPAN_S)
        raised = self._alarms.look(
            Readings(
                now=now,
                at=view.clock(),
                waiting=learner.doing == "waiting for rollouts",
                active=not learner.complete and learner.pause is None,
                nodes=len(view.in_session()),
                accepted=recent.accepted,
                rejected=sum(recent.rejected.values()),
                rolled_back=[one.detail for one in events if one.kind == "rolled_back"],
                paused=None if learner.pause is None else learner.pause.why,
                disk_free=await trio.to_thread.run_sync(view.disk_free),
            )
        )
        for alert in raised:
            self._delivery.send(alert)
        shown = self._alarms.shown()
        if shown != self._told:
            self._told = shown
            self._feed.post("alerts", _ALERTS.dump_json(shown))


def _news(connection: Connection, after: int) -> tuple[list[EventLine], list[Evaluated]]:
    if after < 0:  # only where to begin
        return browse.event_lines(connection, limit=1), browse.evaluated(connection)
    return browse.events_after(connection, after, MOST_EVENTS), browse.evaluated(connection)
