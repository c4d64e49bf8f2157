"""Several versions in flight between real peers: the newest wins, deltas serve, nothing is left."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from swarm_support import CHUNK, Member, Swarm, contents, in_trio, open_swarm

from echo_node.deltas import Deltas
from echo_node.downloads import Downloads
from echo_node.events import Event, Fetched, Trouble
from echo_node.hub import Offer
from echo_node.notice import Notice
from echo_node.policies import FURTHEST_AHEAD, STOPPED_IN_A_ROW, Policies, check_follows
from echo_p2p.artifact.manifest import DELTA_FILE, Artifact, build_manifest
from echo_p2p.artifact.rebuild import make_delta
from echo_p2p.errors import EchoError, FarVersionError, ManifestError, RollbackError
from echo_p2p.identity import Identity
from echo_p2p.wire import DeltaOf

SIZE = 3_000_000


@dataclass
class Follower:
    """A node as far as versions go. `on_event` is called with everything it reports."""

    member: Member
    policies: Policies
    notice: Notice
    events: list[Event] = field(default_factory=list)
    on_event: Callable[[Event], None] = lambda _: None

    def versions(self) -> list[int]:
        """Of the adapters in its store, whole or in part."""
        store = self.member.store
        return sorted(a.manifest.version for a in store.complete() + store.unfinished()
                      if a.manifest.kind == "adapter")  # fmt: skip

    async def until_ready(self, version: int) -> None:
        await self.notice.until(lambda: self.policies.ready == version)


@asynccontextmanager
async def following(swarm: Swarm, member: Member) -> AsyncIterator[Follower]:
    notice = Notice()

    def report(event: Event) -> None:
        follower.events.append(event)
        follower.on_event(event)

    downloads = Downloads(member.store, member.exchange, notice, report)
    deltas = Deltas(member.store, member.exchange, downloads, report)
    policies = Policies(member.store, member.exchange, deltas, notice)
    follower = Follower(member, policies, notice)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(policies.follow, swarm.hub.peer.peer_id)
        yield follower
        nursery.cancel_scope.cancel()


def received(member: Member) -> int:
    return member.exchange.stats.bytes_from_hub + member.exchange.stats.bytes_from_peers


@in_trio
async def test_a_newer_version_stops_the_fetch_of_an_older_one(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm, following(swarm, await swarm.join()) as node:
        old, _ = swarm.publish(version=1, size=SIZE)
        new, source = swarm.publish(version=2, size=SIZE)

        def announce(event: Event) -> None:
            if isinstance(event, Fetched) and event.what == "version 1":
                node.policies.offer(Offer(new))

        node.on_event = announce
        node.policies.offer(Offer(old))
        await node.until_ready(2)
        path = node.member.store.path(new.id)
        assert path is not None
        assert contents(path) == contents(source)
        assert node.versions() == [2]
        assert node.member.store.have(old.id) is None
        assert received(node.member) < 1.5 * SIZE


@in_trio
async def test_a_node_too_slow_for_the_pace_gets_every_fourth_version(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm, following(swarm, await swarm.join()) as node:
        artifacts = [swarm.publish(version=version, size=SIZE)[0] for version in range(6)]
        ready: list[int | None] = []

        def announce_the_next(event: Event) -> None:
            assert isinstance(event, Fetched)
            version = int(event.what.split()[1])
            if version < 5:
                node.policies.offer(Offer(artifacts[version + 1]))

        node.on_event = announce_the_next
        node.policies.offer(Offer(artifacts[0]))
        while node.policies.ready != 5:
            before = node.policies.ready
            await node.notice.until(lambda: node.policies.ready != before)  # noqa: B023
            ready.append(node.policies.ready)
        assert ready == [STOPPED_IN_A_ROW, 5]
        assert node.versions() == [3, 5]


@in_trio
async def test_what_an_earlier_session_left_half_done_is_cleared(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        old, _ = swarm.publish(version=1, size=SIZE)
        new, _ = swarm.publish(version=2, size=SIZE)
        async with following(swarm, await swarm.join()) as node:
            with trio.CancelScope() as session:
                await node.member.exchange.fetch(
                    old, swarm.hub.peer.peer_id, deadline_s=30, progress=lambda _: session.cancel()
                )
            assert node.versions() == [1]
            node.policies.offer(Offer(new))
            await node.until_ready(2)
            while node.versions() != [2]:  # noqa: ASYNC110 - the tidying up tells nobody
                await trio.sleep(0.01)


# --- deltas ---------------------------------------------------------------------------------------


def step(swarm: Swarm, version: int) -> Offer:
    """The version after `version - 1`, with a few bytes changed, and its delta, at the hub."""
    hub = swarm.hub
    (parent,) = [a for a in hub.store.complete() if a.manifest.version == version - 1
                 and a.manifest.kind == "adapter"]  # fmt: skip
    before, source = swarm.root / f"source-{version - 1}", swarm.root / f"source-{version}"
    source.mkdir()
    for file in before.iterdir():
        data = bytearray(file.read_bytes())
        data[version::12] = random.Random(version).randbytes(len(data[version::12]))
        (source / file.name).write_bytes(data)
    adapter = offered(swarm, source, "adapter", version)
    out = swarm.root / f"delta-{version}"
    out.mkdir()
    assert make_delta(hub.store, parent, adapter, out / DELTA_FILE) is not None
    return Offer(adapter, offered(swarm, out, "delta", version, parent=parent, target=adapter))


def offered(swarm: Swarm, folder: Path, kind: str, version: int, **joins: Artifact) -> Artifact:
    delta = DeltaOf(**{name: artifact.id for name, artifact in joins.items()}) if joins else None
    manifest = build_manifest(
        folder, run_id="run", kind=kind, version=version, chunk_bytes=CHUNK, created_at=0.0,
        delta=delta,
    )  # type: ignore[arg-type]  # fmt: skip
    artifact = Artifact.sign(swarm.hub.peer.identity, manifest)
    swarm.hub.store.add(artifact, folder)
    swarm.hub.exchange.offer(artifact.id)
    return artifact


@in_trio
async def test_a_delta_serves_and_what_it_gives_is_served_to_others(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        late, member = await swarm.join(), await swarm.join()
        async with following(swarm, member) as node:
            await _take_and_give_a_delta(swarm, node, late)


async def _take_and_give_a_delta(swarm: Swarm, node: Follower, late: Member) -> None:
    first, _ = swarm.publish(version=1, size=SIZE)
    node.policies.offer(Offer(first))
    await node.until_ready(1)
    offer = step(swarm, 2)
    assert offer.delta is not None
    size = offer.delta.layout.total_bytes
    before = received(node.member)
    node.policies.offer(offer)
    await node.until_ready(2)
    assert received(node.member) - before < SIZE / 2
    assert node.policies.deltas.saved_bytes == SIZE - size > 0.5 * SIZE
    assert contents(node.policies.path(2)) == contents(swarm.root / "source-2")
    await late.peer.connect(node.member.peer.addresses, deadline_s=10)
    await late.peer.disconnect(swarm.hub.peer.peer_id)
    for artifact in offer.artifacts:  # from the node alone: the snapshot, and the delta
        await late.exchange.fetch(artifact, None, deadline_s=30)
    path = late.store.path(offer.adapter.id)
    assert path is not None
    assert contents(path) == contents(swarm.root / "source-2")


@in_trio
async def test_two_nodes_give_the_delta_to_each_other(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        members = [await swarm.join() for _ in range(2)]
        async with following(swarm, members[0]) as one, following(swarm, members[1]) as two:
            await _share_a_delta(swarm, one, two)


async def _share_a_delta(swarm: Swarm, one: Follower, two: Follower) -> None:
    first, _ = swarm.publish(version=1, size=SIZE)
    for node in (one, two):
        node.policies.offer(Offer(first))
    for node in (one, two):
        await node.until_ready(1)
    offer = step(swarm, 2)
    assert offer.delta is not None
    stats = [node.member.exchange.stats for node in (one, two)]
    before = sum(each.bytes_from_peers for each in stats)
    for node in (one, two):
        node.policies.offer(offer)
    for node in (one, two):
        await node.until_ready(2)
    assert sum(each.bytes_from_peers for each in stats) > before
    assert all(node.policies.deltas.saved_bytes for node in (one, two))


@in_trio
async def test_without_the_parent_the_snapshot_is_fetched(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm, following(swarm, await swarm.join()) as node:
        swarm.publish(version=1, size=SIZE)
        node.policies.offer(step(swarm, 2))
        await node.until_ready(2)
        assert received(node.member) >= SIZE
        assert not [event for event in node.events if isinstance(event, Trouble)]


def lying(swarm: Swarm, offer: Offer, parent: Artifact) -> Offer:
    """A delta that is signed, sound in form, and gives other bytes."""
    assert offer.delta is not None
    folder = swarm.root / "lie"
    folder.mkdir()
    path = swarm.hub.store.path(offer.delta.id)
    assert path is not None
    other = step(swarm, 3)
    assert other.delta is not None
    wrong = swarm.hub.store.path(other.delta.id)
    assert wrong is not None
    (folder / DELTA_FILE).write_bytes((wrong / DELTA_FILE).read_bytes())
    delta = offered(swarm, folder, "delta", 2, parent=parent, target=offer.adapter)
    return Offer(offer.adapter, delta)


@in_trio
async def test_a_delta_that_fails_gives_way_to_the_snapshot(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm, following(swarm, await swarm.join()) as node:
        first, _ = swarm.publish(version=1, size=SIZE)
        node.policies.offer(Offer(first))
        await node.until_ready(1)
        offer = lying(swarm, step(swarm, 2), first)
        assert offer.delta is not None
        node.policies.offer(offer)
        await node.until_ready(2)
        assert contents(node.policies.path(2)) == contents(tmp_path / "source-2")
        (trouble,) = [event for event in node.events if isinstance(event, Trouble)]
        assert "delta to version 2 is of no use" in trouble.message
        assert node.policies.deltas.saved_bytes == 0
        assert node.member.store.have(offer.delta.id) is None


@in_trio
async def test_a_newer_version_stops_a_delta_too(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm, following(swarm, await swarm.join()) as node:
        first, _ = swarm.publish(version=1, size=SIZE)
        node.policies.offer(Offer(first))
        await node.until_ready(1)
        old, new = step(swarm, 2), step(swarm, 3)

        def announce(event: Event) -> None:
            if isinstance(event, Fetched) and event.what == "the delta to version 2":
                node.policies.offer(new)

        node.on_event = announce
        node.policies.offer(old)
        await node.until_ready(3)
        assert contents(node.policies.path(3)) == contents(tmp_path / "source-3")
        assert node.versions() == [1, 3]  # and version 2, the delta's parent, was never there
        for artifact in old.artifacts:
            assert node.member.store.have(artifact.id) is None


# --- what may follow what -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "offered_now", "error"),
    [
        (5, 4, RollbackError),
        (5, 0, RollbackError),
        (5, 5, None),
        (5, 6, None),
        (5, 5 + FURTHEST_AHEAD, None),
        (5, 6 + FURTHEST_AHEAD, FarVersionError),
        (0, 2**31 - 1, FarVersionError),
        (None, 2**31 - 1, None),
    ],
)
def test_versions_only_rise_and_not_beyond_belief(
    tmp_path: Path, seen: int | None, offered_now: int, error: type[EchoError] | None
) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    hub = Identity.create()

    def at(version: int) -> Artifact:
        manifest = build_manifest(
            tmp_path, run_id="run", kind="adapter", version=version, chunk_bytes=1024,
            created_at=0.0,
        )  # fmt: skip
        return Artifact.sign(hub, manifest)

    before = None if seen is None else at(seen)
    if error is None:
        check_follows(at(offered_now), before)
    else:
        with pytest.raises(error):
            check_follows(at(offered_now), before)


def test_the_same_version_with_other_bytes_is_refused(tmp_path: Path) -> None:
    hub = Identity.create()
    artifacts = []
    for content in (b"one", b"two"):
        (tmp_path / "a").write_bytes(content)
        manifest = build_manifest(
            tmp_path, run_id="run", kind="adapter", version=1, chunk_bytes=1024, created_at=0.0
        )
        artifacts.append(Artifact.sign(hub, manifest))
    with pytest.raises(ManifestError, match="another version 1"):
        check_follows(artifacts[1], artifacts[0])
