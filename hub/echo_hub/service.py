"""The hub of one run, put together: ledger, learner, front, publisher, network, directory.

Promises: `open_hub` continues at the version the ledger holds, or begins at 0; `Hub.run` trains
until the run is complete or `stop` is set, and then finishes the update in hand, publishes it and
returns. Killed at any instruction, it loses no acknowledged rollout and reuses no version
(docs/reliability.md says why).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest

import trio

from echo_hub import measuring
from echo_hub.activating import Activating
from echo_hub.audit.request import audit_with
from echo_hub.audit.rules import audit_rules
from echo_hub.config import RunConfig
from echo_hub.control.serving import Controls
from echo_hub.endpoints import Endpoints
from echo_hub.learner.client import Learner, open_learner
from echo_hub.ledger.ledger import Ledger
from echo_hub.loop import LearnerLoop
from echo_hub.paths import RunFolder
from echo_hub.publish.beacon import keep_record
from echo_hub.publish.dissemination import Dissemination
from echo_hub.publish.publisher import Publisher, describe_base, same_base
from echo_hub.rollouts.credit import Credits
from echo_hub.rollouts.front import Front
from echo_hub.run_facts import resolve_base, run_description
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.tokens import Tokenizer
from echo_p2p.artifact.store import Store
from echo_p2p.envelope import seal
from echo_p2p.errors import ConfigError, LearnerError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.nursery import open_nursery
from echo_p2p.swarm.exchange import Exchange, HubSide

log = logging.getLogger(__name__)

LEARNER_DEADLINE_S = 900.0
GOODBYE_S = 20.0
PROMPTS_TRIED = 8


@dataclass
class Hub:
    """A run being served. Made by `open_hub`."""

    config: RunConfig
    identity: Identity
    peer: Peer
    front: Front
    publisher: Publisher
    exchange: Exchange
    endpoints: Endpoints
    dissemination: Dissemination
    ledger: Ledger
    learner: Learner
    scorers: Scorers
    loop: LearnerLoop
    controls: Controls
    activating: Activating

    async def run(self, stop: trio.Event) -> None:
        """Train until complete or stopped; see the module's promises."""
        await self.loop.run(stop)

    async def goodbye(self) -> None:
        """After a complete run: wait, but not for ever, until the nodes have been told."""
        with trio.move_on_after(GOODBYE_S):
            await self.endpoints.deserted()


@asynccontextmanager
async def open_hub(
    config: RunConfig, folder: RunFolder, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[Hub]:
    """Assemble and start a hub; everything it started has ended when the block is left.

    Args:
        clock: Unix seconds; what leases, receipts and the ledger go by.
    """
    identity = Identity.load(folder.identity)
    base = resolve_base(config.base.path)
    config, noise = audit_rules(config, folder, base)
    tokenizer = Tokenizer.load(base)
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(
            Ledger.open(folder.ledger, config.run.id, clock=clock)
        )
        await _check_numbering(config, ledger)
        recovered = await ledger.recover(
            stride=config.mixture.stride, window=config.curriculum.window
        )
        version = recovered.version
        base_now = await describe_base(
            identity, config.run.id, base, chunk_bytes=config.publish.chunk_bytes
        )
        if version is not None:  # said before the learner finds that nothing fits it any more
            await same_base(ledger, base_now, base)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        scorers = await stack.enter_async_context(open_scorers(config, base))
        prompts = await try_tasks(config, scorers)
        learner = await stack.enter_async_context(
            open_learner(
                config.model_dump_json(),
                base=base,
                checkpoint=None if version is None else folder.checkpoint(version),
                out=folder.checkpoint(0),
                deadline_s=LEARNER_DEADLINE_S,
                canary=prompts[: config.guard.canary_prompts],
                checkpoint_of=folder.checkpoint,
            )
        )
        if version is not None and learner.version != version:
            raise LearnerError(
                f"the checkpoint of version {version} says that it is {learner.version}.",
                fix="Restore ledger.sqlite and checkpoints/ from the same backup.",
            )
        store = Store(folder.store, cap_bytes=None)
        stack.callback(store.close)
        peer = await stack.enter_async_context(
            open_peer(identity, config.network.listen, limits=config.network.limits)
        )
        hub_side = HubSide()
        exchange = Exchange(
            peer, store, hub=hub_side, damaged=lambda damaged: publisher.note_damage(damaged)
        )
        publisher = Publisher(
            identity,
            config.run.id,
            config.publish.chunk_bytes,
            store=store,
            exchange=exchange,
            ledger=ledger,
            keep=config.staleness + 2,
            deltas=folder.deltas if config.publish.deltas else None,
        )
        base_artifact = await same_base(ledger, base_now, base)
        await publisher.publish_base(base_artifact, base)
        description = run_description(
            config,
            tokenizer,
            base_artifact.id,
            environments=scorers.environments,
            created_at=clock(),
        )
        front = Front(
            config=config,
            identity=identity,
            ledger=ledger,
            scorers=scorers,
            tokenizer=tokenizer,
            recovered=recovered,
            audit=audit_with(learner, folder),
            noise=noise,
            clock=clock,
        )
        dissemination = Dissemination(
            ledger=ledger,
            exchange=exchange,
            recovered=recovered,
            in_session=lambda: endpoints.in_session,
            has_standing=front.has_standing,
            clock=clock,
        )
        endpoints = Endpoints(
            run_id=config.run.id,
            run_envelope=seal(identity, description),
            base_envelope=base_artifact.envelope,
            front=front,
            publisher=publisher,
            credit=Credits(run_id=config.run.id, identity=identity, ledger=ledger, clock=clock),
            hears=dissemination,
            clock=clock,
            keys_per_address=config.network.keys_per_address,
        )
        hub_side.addresses_of = endpoints.addresses_of
        loop = LearnerLoop(
            config=config,
            folder=folder,
            version=version or 0,
            front=front,
            learner=learner,
            ledger=ledger,
            publisher=publisher,
            recovered=recovered.guard,
            clock=clock,
        )
        controls = Controls(
            front=front, guarding=loop.guarding, orders=loop.orders, ledger=ledger, folder=folder
        )
        activating = Activating(
            config=config,
            root=folder.root,
            front=front,
            ledger=ledger,
            dissemination=dissemination,
            in_session=lambda: endpoints.in_session,
            greeted=endpoints.greeted,
            clock=clock,
        )
        dissemination.announce(base_artifact)
        await loop.prepare(recovered)
        endpoints.attach(peer)
        measuring.attach(peer)
        async with open_nursery() as nursery:
            nursery.start_soon(front.run)
            nursery.start_soon(controls.run)
            nursery.start_soon(activating.run, loop)
            nursery.start_soon(publisher.repair)
            nursery.start_soon(dissemination.run, publisher)
            if config.network.directory:
                nursery.start_soon(_beacon, config, folder, identity, peer, publisher)
            yield Hub(
                config=config,
                identity=identity,
                peer=peer,
                front=front,
                publisher=publisher,
                exchange=exchange,
                endpoints=endpoints,
                dissemination=dissemination,
                ledger=ledger,
                learner=learner,
                scorers=scorers,
                loop=loop,
                controls=controls,
                activating=activating,
            )
            await dissemination.write()
            nursery.cancel_scope.cancel()


async def _check_numbering(config: RunConfig, ledger: Ledger) -> None:
    """ConfigError if the ledger's prompts are numbered for one task and there are several now."""
    stride = str(config.mixture.stride)
    if await ledger.remember("prompt_stride", stride) != stride:
        raise ConfigError(
            "this run began with one task and has several now, or the other way round; its ledger "
            "would name other prompts.",
            fix="Put [task] or [[tasks]] back, or start a new run. A run that began with several "
            "tasks can get more, after those it has, and other weights.",
        )


async def try_tasks(config: RunConfig, scorers: Scorers) -> list[list[int]]:
    """Prompts of all tasks in turn; ConfigError if one cannot make any of its first prompts."""
    by_task: list[list[list[int]]] = []
    for number, task in enumerate(config.all_tasks):
        made = await scorers.prompts("train", config.mixture.first_of(number, PROMPTS_TRIED))
        reasons = [prompt for prompt in made if isinstance(prompt, str)]
        if len(reasons) == len(made):
            raise ConfigError(
                f"task {task.called} cannot make prompts for this base: {reasons[-1]}",
                fix="Mend the sections [task] or [[tasks]], and [sampling], of run.toml.",
            )
        by_task.append([prompt for prompt in made if not isinstance(prompt, str)])
    return [prompt for row in zip_longest(*by_task) for prompt in row if prompt is not None]


async def _beacon(
    config: RunConfig, folder: RunFolder, identity: Identity, peer: Peer, publisher: Publisher
) -> None:
    await keep_record(
        identity=identity,
        run_id=config.run.id,
        addresses=announced(config, peer),
        publisher=publisher,
        listen=config.network.directory_listen,
        identity_path=folder.directory_key,
        initial_peers=config.network.directory_peers,
    )


def announced(config: RunConfig, peer: Peer) -> tuple[str, ...]:
    """The hub's addresses as nodes should dial them, each with /p2p/<id>."""
    if not config.network.announce:
        return peer.addresses
    return tuple(f"{address}/p2p/{peer.peer_id}" for address in config.network.announce)
