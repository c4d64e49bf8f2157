"""How the node stands now, put together from all of its parts."""

from __future__ import annotations

import os
import time

from echo_node.chronicle import Chronicle
from echo_node.events import Credited, Engine, Joined, Progress, Step
from echo_node.governor import Governor
from echo_node.limits.book import Entry
from echo_node.paths import NodeFolder
from echo_node.session import Parts, Sessions
from echo_node.snapshot import Snapshot, State


class Standing:
    """`snapshot` may be called at any time."""

    def __init__(
        self,
        parts: Parts,
        sessions: Sessions,
        governor: Governor,
        chronicle: Chronicle,
        folder: NodeFolder,
    ) -> None:
        self._parts = parts
        self._sessions = sessions
        self._governor = governor
        self._chronicle = chronicle
        self._folder = folder

    def state(self) -> State:
        sessions = self._sessions
        if sessions.stopping:
            return "leaving"
        if not self._governor.decision.runs:
            return "paused"
        if sessions.held:
            return "working" if sessions.standby is None else "standby"
        return "away" if sessions.away else "starting"

    def snapshot(self) -> Snapshot:
        """As it is now; the rates and readings are a few seconds old at most."""
        parts, governor, state = self._parts, self._governor, self.state()
        step, joined = self._chronicle.newest(Step), self._chronicle.newest(Joined)
        progress = self._chronicle.newest(Progress) if state == "working" else None
        credited = self._chronicle.newest(Credited)
        readings, decision = governor.readings, governor.decision
        sent, received = parts.peer.moved_bytes
        work, outbox = self._sessions.done, parts.outbox
        standby = self._sessions.standby if state == "standby" else None
        return Snapshot(
            state=state,
            step="" if step is None else step.step,
            reasons=decision.reasons,
            standby="" if standby is None else standby.message,
            until=decision.until if standby is None else standby.until,
            now=time.time(),
            started_at=self._chronicle.started_at,
            pid=os.getpid(),
            folder=str(self._folder.root),
            node=parts.peer.peer_id,
            run=parts.entry.id,
            task="" if joined is None else joined.task,
            engine=_engine(self._chronicle.newest(Engine)),
            version=parts.policies.active,
            lag=self._lag(),
            rollouts_per_s=0.0 if progress is None else progress.rollouts_per_s,
            tokens_per_s=0.0 if progress is None else progress.tokens_per_s,
            groups=work.groups,
            accepted=outbox.accepted,
            rejected=dict(outbox.rejected),
            unsent=outbox.unsent,
            rollouts=work.rollouts,
            tokens=work.tokens,
            credit=outbox.credit,
            ledger_credit=None if credited is None else credited.tokens,
            peers=len(parts.peer.connected() - {parts.entry.hub_key}),
            sent_bytes=sent,
            received_bytes=received,
            sent_per_s=round(governor.rates[0], 1),
            received_per_s=round(governor.rates[1], 1),
            data_today=readings.data_today,
            data_this_month=readings.data_this_month,
            ram_bytes=governor.own.ram,
            cpu_temperature=readings.cpu_temperature,
            gpu_temperature=readings.gpu_temperature,
            gpu_load=readings.gpu_load,
            limits=tuple(map(_shown, filter(_matters, governor.book.entries()))),
        )

    def _lag(self) -> int | None:
        active, newest = self._parts.policies.active, self._parts.policies.newest
        return None if active is None or newest is None else max(0, newest - active)


def _engine(event: Engine | None) -> str:
    return "" if event is None else f"{event.name} on {event.device}, {event.dtype}"


def _matters(entry: Entry) -> bool:
    return entry.source != "default"


def _shown(entry: Entry) -> str:
    return f"{entry.name} {entry.value}"
