"""The plan of work for a run on this machine, made before its weights are fetched.

Promise: a base that cannot fit is refused (`FitError`) before a byte of its weights came; a plan
that cannot be made is said, with what is done instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import trio

from echo_node import software
from echo_node.engines.base import Resources
from echo_node.engines.sizing import UNPLANNED
from echo_node.events import Planned
from echo_node.fit import Misfit, Plan, Wishes, least_need, places, plan
from echo_node.hardware.look import look
from echo_node.limits.settings import Limits
from echo_node.limits.wishes import wishes_for
from echo_node.peek import peek
from echo_node.shapes import Shape, shape_of
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, ConfigError, FitError, NetError
from echo_p2p.net.host import Peer
from echo_p2p.wire import RunDescription

PEEK_S = 20.0


@dataclass(frozen=True)
class Unplanned:
    """Why there is no plan, and how many answers at a time are tried."""

    why: str
    max_sequences: int


def told(plan: Plan) -> Planned:
    """A plan as the person, or the program, that started the node hears of it."""
    return Planned(
        sentence=plan.sentence,
        engine=plan.engine,
        place=plan.place,
        dtype=plan.dtype,
        context=plan.context,
        max_sequences=plan.max_sequences,
        needs=plan.need.total,
        may_have=plan.memory,
    )


def resources_of(plan: Plan) -> Resources:
    """What the engine's process is to keep to, so that it does as planned."""
    return Resources(
        device="" if plan.device == "metal" else plan.device,
        memory=plan.memory,
        memory_share=plan.memory_share,
        context=plan.context,
        tensor_parallel=plan.cards,
    )


@dataclass(frozen=True)
class Planner:
    """What the volunteer wants of a plan. `max_sequences` None: as many as fit."""

    engine: str = "auto"
    max_sequences: int | None = None
    limits: Limits = field(default_factory=Limits)

    async def plan(
        self, peer: Peer, hub: str, store: Store, base: Artifact, run: RunDescription
    ) -> Plan | Unplanned:
        """For a run and its base, here or at a connected hub; FitError if it cannot fit."""
        if "://" in self.engine:
            return self._unplanned("the server that --engine names has a plan of its own.")
        try:
            shape = await _shape_of(peer, hub, store, base)
        except (ConfigError, ArtifactError, NetError) as error:
            return self._unplanned(error.message)
        return await self._plan(shape, base, run)

    async def engine_name(self) -> str:
        """What will generate, as far as it is known before the run is: for `Hello`."""
        if "://" in self.engine:
            return "a server"
        installed, machine = software.look(), await trio.to_thread.run_sync(look)
        some = places(machine, installed, Wishes(context=1, engine=self.engine))
        if not some:
            return self.engine
        return f"{some[0].engine} {software.version_of(some[0].engine)} on {some[0].name}"

    def _unplanned(self, why: str) -> Unplanned:
        return Unplanned(why, self.max_sequences or UNPLANNED)

    async def _plan(self, shape: Shape, base: Artifact, run: RunDescription) -> Plan:
        machine = await trio.to_thread.run_sync(look)
        installed = software.look()
        asked = Wishes(
            context=run.context,
            group_size=run.group_size,
            dtype=run.dtype,
            engine=self.engine,
            max_sequences=self.max_sequences,
            turns=bool(run.environments),
        )
        wishes = wishes_for(self.limits, machine, asked)
        weights = sum(f.size for f in base.manifest.files if f.name.endswith(".safetensors"))
        lacking = least_need(weights, machine, installed, wishes)
        made = plan(shape, wishes, machine, installed)
        if isinstance(made, Misfit):
            raise FitError(lacking or f"the run does not fit: {made.sentence}", fix=made.fix)
        return made


async def _shape_of(peer: Peer, hub: str, store: Store, base: Artifact) -> Shape:
    folder = store.path(base.id)
    if folder is not None:
        text = await trio.to_thread.run_sync(_read, folder / "config.json")
    else:
        text = await peek(peer, hub, base, "config.json", deadline_s=PEEK_S)
    try:
        return shape_of(json.loads(text), source="the base's config.json")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the base's config.json is not valid JSON: {error}.") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}.") from error
