"""A pool of scorers on the operator's Ray cluster, with the interface of the local one.

Promises: as many jobs are out as there are places; a job whose scorer hung or crashed is tried as
often as in a local pool, and one that was lost with its machine up to `LOSSES` times more; it is
settled once, by whichever answer comes first, and never by a reward that nobody computed. A cluster
that cannot be reached at the start stops the hub; one that is lost later is waited for.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from echo_hub.config import ScoringSection
from echo_hub.scoring.process import Failed, Setup
from echo_hub.scoring.ray_bridge import TO_HUB, Ask, Connect, Connected, Lost, Told, Unconnected
from echo_p2p.errors import ConfigError, ProcessError, WireError
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

if TYPE_CHECKING:
    from echo_hub.scoring.pool import _Job as Job

LOSSES = 8
_CONNECT_S = 360.0
_AGAIN_S = 5.0
_FILES = (
    "tokenizer.json", "config.json", "generation_config.json", "tokenizer_config.json",
    "chat_template.jinja",
)  # fmt: skip

log = logging.getLogger(__name__)


class RayPool:
    """Takes jobs from a channel and settles them; `run` until cancelled."""

    def __init__(
        self,
        setup: Setup,
        jobs: trio.MemoryReceiveChannel[Job],
        rules: ScoringSection,
        *,
        tries: int,
    ) -> None:
        base = Path(setup.base)
        self._connect = Connect(
            address="auto" if rules.pool == "ray" else rules.pool,
            places=rules.processes,
            setup=setup,
            files={name: (base / name).read_bytes() for name in _FILES if (base / name).exists()},
            environment=list(rules.environment),
        )
        self._jobs = jobs
        self._rules = rules
        self._numbers = itertools.count()
        self._out: dict[int, Job] = {}
        self._tries = tries
        self._sending = trio.Lock()
        self._places = trio.Semaphore(rules.processes)
        self.ready = trio.Event()
        self.lacking: list[str] = []
        self.environments: tuple[str, ...] = ()

    async def run(self) -> None:
        """Keep a bridge to the cluster, and a new one when it is lost."""
        while True:
            try:
                async with self._bridge() as child:
                    await self._serve(child)
            except (ProcessError, WireError) as error:
                if not self.ready.is_set():
                    raise
                log.warning("the Ray cluster is lost, and tried again: %s", error)
                await trio.sleep(_AGAIN_S)

    @asynccontextmanager
    async def _bridge(self) -> AsyncIterator[Child]:
        async with child_process("echo_hub.scoring.ray_bridge", name="the bridge to Ray") as child:
            said = await child.call(self._connect, TO_HUB, deadline_s=_CONNECT_S)
            if isinstance(said, Unconnected) and said.task:
                raise ConfigError(said.message)
            if not isinstance(said, Connected):
                why = said.message if isinstance(said, Unconnected) else "it broke its protocol"
                raise ProcessError(
                    f"there are no scorers on the Ray cluster {self._connect.address}: {why}",
                    fix="Is it running, reachable, and echo-p2p[hub,ray] installed on all of it?",
                )
            self.lacking = said.ready.lacking
            self.environments = tuple(said.ready.environments)
            self.ready.set()
            yield child

    async def _serve(self, child: Child) -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(self._send, child)
            while True:
                message = await child.receive(TO_HUB)
                if isinstance(message, Told | Lost):
                    await self._settle(child, message)

    async def _send(self, child: Child) -> None:
        for number in sorted(self._out):  # of a bridge that is no more
            await self._ask(child, number)
        while True:
            await self._places.acquire()
            job = await self._take()
            number = next(self._numbers)
            self._out[number] = job
            await self._ask(child, number)

    async def _take(self) -> Job:
        try:
            return await self._jobs.receive()
        except BaseException:  # cancelled: the place is free for whoever comes next
            self._places.release()
            raise

    async def _ask(self, child: Child, number: int) -> None:
        job = self._out.get(number)
        if job is not None:
            deadline_s = self._rules.timeout_s * job.size
            async with self._sending:
                await child.send(Ask(job=number, command=job.command, deadline_s=deadline_s))

    async def _settle(self, child: Child, message: Told | Lost) -> None:
        job = self._out.get(message.job)
        if job is None:  # it was settled before
            return
        if isinstance(message, Told):
            if not (isinstance(message.answer, Failed) and message.answer.spent):
                self._end(message.job, job, message)
                return
            job.tries += 1
        else:
            job.tries += not message.cluster
            job.losses += message.cluster
        if job.tries < self._tries and job.losses <= LOSSES:
            await self._ask(child, message.job)
        else:
            self._end(message.job, job, message)

    def _end(self, number: int, job: Job, message: Told | Lost) -> None:
        del self._out[number]
        self._places.release()
        if isinstance(message, Told):
            job.answer = message.answer
        else:
            job.answer = Failed(message=message.message)
        job.done.set()
