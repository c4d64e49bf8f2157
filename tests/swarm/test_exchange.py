"""The exchange between several real peers on loopback: who sends what, and who is not believed."""

from __future__ import annotations

import functools
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from hostile import WAYS, Hostile
from swarm_support import CHUNK, Swarm, contents, in_trio, open_swarm
from trio.testing import wait_all_tasks_blocked

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import DeadlineError, PeerRefusedError, StoreError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import ask
from echo_p2p.rates import Limits
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.swarm.fetch import MAX_FOLLOWED, Progress
from echo_p2p.swarm.uploads import Uploads
from echo_p2p.wire import (
    MAX_CHUNKS,
    SWARM_PROTOCOL,
    ChunkReply,
    ChunkRequest,
    HaveReply,
    HaveRequest,
    PeersReply,
    PeersRequest,
    encode,
)


@in_trio
async def test_chunks_come_from_the_hub_and_from_each_other(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        nodes = [await swarm.join() for _ in range(3)]
        for version in range(3):
            artifact, source = swarm.publish(version=version)
            await swarm.fetch(artifact, *nodes)
            for node in nodes:
                path = node.store.path(artifact.id)
                assert path is not None
                assert contents(path) == contents(source)
        sent = swarm.hub.exchange.stats.bytes_sent["adapter"]
        of_each = swarm.hub.exchange.stats.bytes_sent_of
        assert sum(of_each.values()) == sent
        swarm.hub.exchange.withdraw(artifact.id)
        assert artifact.id not in of_each
        assert 3.0 <= sent / artifact.layout.total_bytes <= 1.5 * 3.0
        stats = [node.exchange.stats for node in nodes]
        for came, sent in (
            (sum(s.bytes_from_hub for s in stats), swarm.hub.exchange.stats.bytes_sent.total()),
            (sum(s.bytes_from_peers for s in stats), sum(s.bytes_sent.total() for s in stats)),
        ):
            assert came <= sent <= 1.5 * came  # some was asked for twice, and then not waited for
        assert all(s.bytes_from_peers > 0 for s in stats)


@in_trio
async def test_progress_rises_to_the_whole(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        node = await swarm.join()
        artifact, _ = swarm.publish()
        seen: list[Progress] = []
        await node.exchange.fetch(
            artifact, swarm.hub.peer.peer_id, deadline_s=30, progress=seen.append
        )
        done = [progress.done_bytes for progress in seen]
        assert done == sorted(done)
        assert seen[-1] == Progress(450_000, 450_000, 450_000, 0, 0)


@in_trio
async def test_a_late_joiner_costs_the_hub_nothing(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        early = [await swarm.join() for _ in range(2)]
        artifact, _ = swarm.publish()
        await swarm.fetch(artifact, *early)
        sent = swarm.hub.exchange.stats.bytes_sent.total()
        late = await swarm.join()
        await swarm.fetch(artifact, late)
        assert swarm.hub.exchange.stats.bytes_sent.total() == sent
        assert late.exchange.stats.bytes_from_peers == artifact.layout.total_bytes


@in_trio
async def test_a_node_that_cannot_be_dialled_still_uploads(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        hidden = await swarm.join(listening=False)
        assert hidden.peer.addresses == ()
        artifact, _ = swarm.publish()
        open_node = await swarm.join()
        await swarm.fetch(artifact, hidden, open_node)
        assert hidden.exchange.stats.bytes_sent.total() > 0


@in_trio
async def test_a_fetch_keeps_to_the_limits_of_both_sides(tmp_path: Path) -> None:
    rate = 250_000
    async with open_swarm(tmp_path) as swarm:
        giver = await swarm.join(limits=Limits(upload=2 * rate))
        artifact, _ = swarm.publish(chunk=32 * 1024)
        await swarm.fetch(artifact, giver)
        taker = await swarm.join(limits=Limits(download=rate))
        began = trio.current_time()
        await swarm.fetch(artifact, taker)
        least_s = artifact.layout.total_bytes / rate
        assert trio.current_time() - began >= 0.95 * least_s


@in_trio
async def test_a_node_with_an_upload_limit_of_zero_gives_nothing_and_gets_everything(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        leaf = await swarm.join(limits=Limits(upload=0))
        others = [await swarm.join() for _ in range(2)]
        artifact, source = swarm.publish()
        await swarm.fetch(artifact, leaf, *others)
        path = leaf.store.path(artifact.id)
        assert path is not None
        assert contents(path) == contents(source)
        assert leaf.exchange.stats.bytes_sent.total() == 0
        request = ChunkRequest(
            artifact=artifact.id, index=0, lacks=b"", insist=False, backlog_s=0.0
        )
        asker, asked = swarm.hub.peer, leaf.peer.peer_id
        with pytest.raises(PeerRefusedError, match="gives no chunks") as refused:
            await ask(asker, asked, SWARM_PROTOCOL, request, ChunkReply, deadline_s=10)
        assert refused.value.code == "gives_nothing"


@in_trio
async def test_nodes_complete_from_each_other_when_the_hub_is_gone(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        first, second = await swarm.join(), await swarm.join()
        artifact, source = swarm.publish()
        await swarm.fetch(artifact, first)
        await second.peer.disconnect(swarm.hub.peer.peer_id)
        await second.peer.connect(first.peer.addresses, deadline_s=10)
        await swarm.fetch(artifact, second)
        path = second.store.path(artifact.id)
        assert path is not None
        assert contents(path) == contents(source)


@in_trio
async def test_the_same_artifact_twice_at_once_is_fetched_once(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        node = await swarm.join()
        artifact, _ = swarm.publish()
        await swarm.fetch(artifact, node, node, node)
        assert node.exchange.stats.bytes_from_hub == artifact.layout.total_bytes


@pytest.mark.parametrize("how", [*WAYS, "silent"])
@in_trio
async def test_everyone_completes_among_bad_peers(tmp_path: Path, how: str) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, source = swarm.publish()
        nodes = [await swarm.join() for _ in range(2)]
        bad = [await swarm.stranger() for _ in range(2)]
        for peer in bad:
            if how != "silent":
                Hostile(peer, how).lie_about(artifact)
            for node in nodes:
                await node.peer.connect(peer.addresses, deadline_s=10)
        await swarm.fetch(artifact, *nodes)
        for node in nodes:
            path = node.store.path(artifact.id)
            assert path is not None
            assert contents(path) == contents(source)


@pytest.mark.parametrize("how", ["chatty", "mute", "silent"])
@in_trio
async def test_bad_peers_do_not_take_the_places_of_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for name in ("POLL_S", "ANSWER_S", "FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(f"echo_p2p.swarm.fetch.{name}", 0.3)
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish()
        node, good = await swarm.join(), await swarm.join()
        await swarm.fetch(artifact, good)
        bad = [await swarm.stranger() for _ in range(MAX_FOLLOWED + 1)]
        for peer in bad:
            if how != "silent":
                Hostile(peer, how).lie_about(artifact)
            await node.peer.connect(peer.addresses, deadline_s=10)
        await node.peer.disconnect(swarm.hub.peer.peer_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                functools.partial(node.exchange.fetch, artifact, None, deadline_s=120)
            )
            await wait_all_tasks_blocked(0.1)
            await node.peer.connect(good.peer.addresses, deadline_s=10)
        assert node.store.path(artifact.id) is not None


@in_trio
async def test_askers_that_do_not_read_keep_nobody_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo_p2p.swarm.uploads._FIRST_TOOK_S", 0.1)
    monkeypatch.setattr("echo_p2p.swarm.turns.Uploads", functools.partial(Uploads, most=4))
    async with open_swarm(tmp_path) as swarm, AsyncExitStack() as stack:
        artifact, _ = swarm.publish(size=3 << 20, chunk=1 << 20)
        hub = swarm.hub.peer.peer_id
        for _ in range(6):
            deaf = await swarm.stranger()
            stream = await stack.enter_async_context(
                deaf.stream(hub, SWARM_PROTOCOL, deadline_s=10)
            )
            await stream.send(
                encode(
                    ChunkRequest(
                        artifact=artifact.id, index=0, lacks=b"", insist=False, backlog_s=0.0
                    )
                )
            )
        node = await swarm.join()
        await swarm.fetch(artifact, node, deadline_s=40)  # an answer's deadline is 45 s


@in_trio
async def test_a_liar_is_reported_and_never_asked_again(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish(size=4_000_000)
        node = await swarm.join()
        peer = await swarm.stranger()
        liar = Hostile(peer, "liar")
        liar.lie_about(artifact)
        await node.peer.connect(peer.addresses, deadline_s=10)
        await swarm.fetch(artifact, node)
        assert swarm.reports
        for reporter, report in swarm.reports:
            assert reporter == node.peer.peer_id
            assert (report.peer, report.artifact) == (peer.peer_id, artifact.id)
        asked = liar.requests
        following, _ = swarm.publish(version=1)
        liar.lie_about(following)
        await swarm.fetch(following, node)
        assert liar.requests == asked


@in_trio
async def test_a_peer_that_says_nothing_at_once_does_not_keep_us_busy(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish()
        node = await swarm.join()
        peer = await swarm.stranger()
        chatty = Hostile(peer, "chatty")
        await node.peer.connect(peer.addresses, deadline_s=10)
        await node.peer.disconnect(swarm.hub.peer.peer_id)
        with pytest.raises(DeadlineError, match="7 of 7 chunks are lacking"):
            await node.exchange.fetch(artifact, None, deadline_s=1)
        assert chatty.requests <= 2


@in_trio
async def test_what_came_before_a_deadline_is_not_fetched_again(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish()
        node = await swarm.join()
        with trio.CancelScope() as scope:
            await node.exchange.fetch(
                artifact,
                swarm.hub.peer.peer_id,
                deadline_s=30,
                progress=lambda p: scope.cancel() if p.done_bytes > 200_000 else None,
            )
        first = node.exchange.stats.bytes_from_hub
        assert 200_000 < first < 450_000
        await swarm.fetch(artifact, node)
        # one request may have been cancelled after its chunk had been sent
        assert node.exchange.stats.bytes_from_hub <= 450_000 + CHUNK


@in_trio
async def test_a_chunk_that_rots_on_disk_is_not_served_and_is_fetched_again(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, source = swarm.publish()
        first, second = await swarm.join(), await swarm.join()
        await swarm.fetch(artifact, first)
        path = swarm.hub.store.path(artifact.id)
        assert path is not None
        with (path / "adapter.safetensors").open("r+b") as file:
            file.seek(3 * CHUNK)
            file.write(b"rot")
        with pytest.raises(PeerRefusedError, match="not_here"):
            await _ask_for_chunk(second.peer, swarm.hub.peer, artifact.id, 3)
        assert swarm.damaged == [artifact.id]
        with pytest.raises(StoreError):
            swarm.hub.exchange.offer(artifact.id)
        await second.peer.connect(first.peer.addresses, deadline_s=10)
        await swarm.fetch(artifact, second)
        swarm.hub.store.add(artifact, source)
        swarm.hub.exchange.offer(artifact.id)
        assert (await _ask_for_chunk(second.peer, swarm.hub.peer, artifact.id, 3)).index == 3


async def _ask_for_chunk(
    peer: Peer, other: Peer, artifact_id: bytes, index: int | None, lacks: bytes = b""
) -> ChunkReply:
    request = ChunkRequest(
        artifact=artifact_id, index=index, lacks=lacks, insist=False, backlog_s=0.0
    )
    return await ask(peer, other.peer_id, SWARM_PROTOCOL, request, ChunkReply, deadline_s=10)


@in_trio
async def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish()
        node, asker = await swarm.join(), await swarm.join()
        await swarm.fetch(artifact, node)
        await asker.peer.connect(node.peer.addresses, deadline_s=10)
        hub = swarm.hub.peer

        async def refused(
            other: Peer, code: str, index: int | None, lacks: bytes = b"", name: bytes = artifact.id
        ) -> None:
            with pytest.raises(PeerRefusedError) as caught:
                await _ask_for_chunk(asker.peer, other, name, index, lacks)
            assert caught.value.code == code

        await refused(hub, "unknown_artifact", 0, name=bytes(32))
        await refused(hub, "bad_message", 0, name=b"short")
        await refused(hub, "bad_message", MAX_CHUNKS)
        await refused(hub, "not_here", MAX_CHUNKS - 1)
        await refused(hub, "bad_message", None, lacks=b"\xff" * 100)
        await refused(node.peer, "not_a_hub", None, lacks=b"\x01")
        for other, code in [(hub, "unknown_artifact"), (node.peer, "not_a_hub")]:
            with pytest.raises(PeerRefusedError) as caught:
                await ask(
                    asker.peer,
                    other.peer_id,
                    SWARM_PROTOCOL,
                    PeersRequest(artifact=bytes(32)),
                    PeersReply,
                    deadline_s=10,
                )
            assert caught.value.code == code


@in_trio
async def test_news_of_an_unknown_artifact_is_waited_for(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        asker = await swarm.join()
        replies: list[HaveReply] = []

        async def wait(artifact_id: bytes, wait_s: float) -> None:
            request = HaveRequest(artifact=artifact_id, known=b"", wait_s=wait_s)
            hub = swarm.hub.peer.peer_id
            replies.append(
                await ask(asker.peer, hub, SWARM_PROTOCOL, request, HaveReply, deadline_s=40)
            )

        await wait(bytes(32), 0.0)
        assert replies == [HaveReply(have=b"")]
        artifact = _unpublished(swarm)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, artifact.id, 30.0)
            await _until_watched(swarm.hub.exchange, artifact.id)
            swarm.hub.store.add(artifact, tmp_path / "source-9")
            swarm.hub.exchange.offer(artifact.id)
        assert replies[1:] == [HaveReply(have=bitmap.to_bytes(bitmap.full(7), 7))]


def _unpublished(swarm: Swarm) -> Artifact:
    from swarm_support import make_artifact

    return make_artifact(swarm.hub.peer.identity, swarm.root / "source-9", version=9)


async def _until_watched(exchange: Exchange, artifact_id: bytes) -> None:
    while artifact_id not in exchange._answers._watchers:  # noqa: ASYNC110 - a watcher sets no event
        await trio.sleep(0.01)


@in_trio
async def test_a_disk_that_fails_ends_the_fetch_with_one_store_error(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        artifact, _ = swarm.publish()
        node = await swarm.join()

        def lose_the_disk(_: Progress) -> None:
            shutil.rmtree(node.store.root / "partial", ignore_errors=True)

        with pytest.raises(StoreError, match="cannot write chunk"):
            await node.exchange.fetch(
                artifact, swarm.hub.peer.peer_id, deadline_s=30, progress=lose_the_disk
            )
