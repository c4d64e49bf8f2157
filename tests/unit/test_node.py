"""A node in a run: from nothing to receipts, through lost hubs, bad versions and a stop."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch
import trio
from engine_models import CONTEXT, check_completion, make_adapter, make_base, reference
from net_support import in_trio, until
from safetensors.torch import load_file, save_file
from small_hub import RUN_ID, SmallHub, ThreadEngine

from echo_node import hub as hub_module
from echo_node import node as node_module
from echo_node import session as session_module
from echo_node.engines.base import Completion
from echo_node.events import (
    Credited,
    Event,
    Fetched,
    Joined,
    OffStandby,
    Progress,
    Standby,
    Step,
    Summary,
    Trouble,
    Verdict,
    Version,
)
from echo_node.node import Node
from echo_node.outbox import MAX_TRIES
from echo_node.paths import NodeFolder
from echo_node.people import vouch, write_voucher
from echo_node.statements import kept_statements
from echo_node.worker import jobs_of
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import RunEntry
from echo_p2p.directory.client import open_directory
from echo_p2p.directory.records import next_expiry
from echo_p2p.envelope import seal
from echo_p2p.errors import (
    BannedError,
    ConfigError,
    EchoError,
    ManifestError,
    NetError,
    PeerRefusedError,
    RollbackError,
    SignatureError,
)
from echo_p2p.identity import Identity
from echo_p2p.net.addresses import parse
from echo_p2p.net.host import open_peer
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    Latest,
    Receipt,
    RunRecord,
    StandbyReply,
    Submission,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)

torch.set_num_threads(1)

HOST = Identity.create()
"""Whose machine a node is."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(base, folder / str(seed), seed) for seed in range(3)]


@pytest.fixture
def hub(base: Path, tmp_path: Path) -> SmallHub:
    return SmallHub(Store(tmp_path / "hub-store", cap_bytes=None), base)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LEASE_WAIT_S", 0.3)
    monkeypatch.setattr(node_module, "TICK_S", 0.05)
    monkeypatch.setattr(session_module, "reconnect_delay_s", lambda failures, chance: 0.1)


@dataclass
class Running:
    """A node at work, and what it said."""

    node: Node
    engine: ThreadEngine
    store: Store
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def a_node(hub: SmallHub, addresses: tuple[str, ...], folder: Path) -> AsyncIterator[Running]:
    """A node of this run, at work until the block is left; it is told these addresses."""
    entry = RunEntry(id=RUN_ID, hub_key=hub.identity.peer_id, addresses=(addresses * 3)[:3])
    identity = Identity.create()
    events: list[Event] = []

    def report(event: Event) -> None:
        events.append(event)
        hub.changed.tell()

    async with open_peer(identity, ["/ip4/127.0.0.1/tcp/0"]) as peer:
        with Store(folder / "node-store", cap_bytes=None) as store:
            engine = ThreadEngine()
            node = Node(NodeFolder(folder), entry, identity, store, peer, engine, report)  # type: ignore[arg-type]
            async with open_nursery() as nursery:
                nursery.start_soon(node.run)
                yield Running(node, engine, store, events)
                nursery.cancel_scope.cancel()


def check_group(hub: SmallHub, lease_id: bytes, base: Path, adapters: list[Path]) -> Submission:
    """Derive a submitted group again under the version it claims."""
    lease, submission = hub.granted[lease_id], hub.submissions[lease_id]
    policy = reference(base, adapters[submission.version])
    assert len(submission.rollouts) == lease.group_size
    for job, rollout in zip(jobs_of(lease), submission.rollouts, strict=True):
        tokens, logprobs = unpack_tokens(rollout.tokens), unpack_logprobs(rollout.logprobs)
        check_completion(policy, job, Completion(tokens, logprobs, rollout.finish))
    return submission


@in_trio
async def test_a_node_on_standby_says_why_keeps_current_and_is_there_at_once(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(1, adapters[1])
    hub.standby = StandbyReply(standby=True, sentence="others work", until=time.time() + 600)
    async with (
        hub.on_the_network() as peer,
        a_node(hub, peer.addresses, tmp_path) as running,
    ):
        await until(lambda: bool(running.of(Standby)))
        (told,) = running.of(Standby)
        assert (told.message, told.until) == ("others work", hub.standby.until)
        assert running.node.sessions.standby == told
        hub.publish(2, adapters[2])
        await until(lambda: any(one.version == 2 for one in running.of(Version)))
        hub.standby = None
        hub.order(1)
        await until(lambda: hub.answered() == 1)
        assert len(running.of(OffStandby)) == 1
        assert running.node.sessions.standby is None


@in_trio
async def test_from_nothing_to_the_end_of_the_run(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    hub.order(7)
    async with hub.on_the_network() as peer:
        entry = RunEntry(id=RUN_ID, hub_key=peer.peer_id, addresses=peer.addresses * 3)
        identity = Identity.create()
        events: list[Event] = []

        def report(event: Event) -> None:
            events.append(event)
            hub.changed.tell()

        def stated() -> bool:
            return any(isinstance(event, Credited) and event.name == "Ada" for event in events)

        with Store(tmp_path / "node-store", cap_bytes=None) as store:
            async with open_peer(identity, ["/ip4/127.0.0.1/tcp/0"]) as node_peer:
                engine = ThreadEngine()
                home = NodeFolder(tmp_path)
                write_voucher(home, vouch(HOST, identity.public_key, "Ada", now=1.0))
                node = Node(home, entry, identity, store, node_peer, engine, report)  # type: ignore[arg-type]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(node.run)
                    await hub.changed.until(lambda: hub.answered() == 7 and stated())
                    hub.complete = True
                    hub.changed.tell()
                assert node.finish() == 0
    assert hub.hellos[0].engine.startswith("torch 2")
    assert hub.hellos[0].addresses == node_peer.addresses
    for lease_id in hub.granted:
        check_group(hub, lease_id, base, adapters)
    assert hub.vouchers == {identity.public_key: (HOST.public_key, "Ada")}
    kept = [statement for _, statement in kept_statements(home)]
    assert [(one.hub, one.credit.node) for one in kept] == [(peer.peer_id, identity.public_key)]
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert (summary.reason, summary.groups, summary.accepted) == ("complete", 7, 7)
    assert summary.rollouts == 28
    assert (summary.rejected, summary.unsent) == ({}, 0)
    assert summary.bytes_from_hub > 10_000
    assert [len(jobs) for jobs in engine.batches] == [4] * 7  # each lease is a call of its own


@in_trio
async def test_versions_and_windows(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        async with running.engine.hold:  # the first batch waits while everything else happens
            hub.order(2)
            await hub.changed.until(lambda: len(running.engine.batches) == 2)
            hub.order(1, max_version=0)
            hub.order(1, min_version=1)
            await hub.changed.until(lambda: len(hub.granted) == 4)
            hub.publish(1, adapters[1])
            policies = running.node._parts.policies
            await policies._notice.until(lambda: policies.ready == 1)
            hub.order(1, max_version=0)  # nobody can answer this one any more, soon
        await hub.changed.until(lambda: hub.answered() == 4 and running.of(Version)[1:])
        await hub.changed.until(lambda: len(hub.granted) == 5)
        await hub.changed.until(lambda: hub.answered() + len(hub.returned) == 5)
    versions = {
        number: check_group(hub, lease_id, base, adapters).version
        for number, lease_id in enumerate(hub.granted)
        if lease_id in hub.submissions
    }
    assert (versions[2], versions[3]) == (0, 1)
    assert [event.version for event in running.of(Version)] == [0, 1]  # type: ignore[attr-defined]


def fixed_address(hub: SmallHub) -> tuple[str, tuple[str, ...]]:
    """An address that a hub can have twice: to listen on, and to dial."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    return address, (f"{address}/p2p/{hub.identity.peer_id}",)


@in_trio
async def test_a_hub_that_goes_away_gets_everything_when_it_is_back(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    address, dialled = fixed_address(hub)
    async with a_node(hub, dialled, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Trouble))  # it is not there yet
        (place,) = {parse(each).place for each in dialled}
        assert running.of(Trouble)[0].message == (  # type: ignore[attr-defined]
            f"the hub of run {RUN_ID} cannot be reached at {place} (connection refused)."
        )
        async with running.engine.hold:
            async with hub.on_the_network(address):
                hub.order(2)
                await hub.changed.until(lambda: len(running.engine.batches) == 2)
            known = len(running.of(Trouble))
            await hub.changed.until(lambda: len(running.of(Trouble)) > known)
        outbox = running.node._parts.outbox
        await outbox._notice.until(lambda: outbox.unsent == 2)
        hub.order(3)
        async with hub.on_the_network(address):
            await hub.changed.until(lambda: hub.answered() == 5)
            await outbox._notice.until(lambda: outbox.empty)
            await hub.changed.until(lambda: running.of(Progress))
    assert len(running.of(Joined)) == 2
    away = running.of(Trouble)[known]
    during = running.events[
        running.events.index(away) : running.events.index(running.of(Joined)[1])
    ]
    assert not [event for event in during if isinstance(event, Progress)]
    assert outbox.accepted == 5
    assert hub.tries == 5
    for lease_id in hub.granted:
        check_group(hub, lease_id, base, adapters)


@in_trio
async def test_a_silent_hub_is_left_and_found_again(
    hub: SmallHub, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SILENCE_S", 0.5)
    hub.publish(0, adapters[0])
    hub.heartbeats = False
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: len(running.of(Joined)) == 2)
        hub.heartbeats = True
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 1)


@in_trio
async def test_receipts_are_counted_by_code_and_refusals_tried_again(
    hub: SmallHub, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo_node.outbox.retry_delay_s", lambda tries: 0.01)
    busy = iter([True] * 2)

    def verdict(submission: Submission) -> str:
        number = int.from_bytes(submission.lease_id, "big")
        if number == 1 and next(busy, False):
            raise PeerRefusedError("not now", code="busy")
        if number == 2:
            hub.submissions[submission.lease_id] = submission  # as if an earlier try had arrived
        if number == 5:
            raise PeerRefusedError("never", code="internal")
        if number == 6:
            raise PeerRefusedError("never", code="too_large")
        return {3: "stale", 4: "stale"}.get(number, "")

    hub.verdict = verdict
    hub.publish(0, adapters[0])
    hub.order(6)
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        outbox = running.node._parts.outbox
        done = running.node._sessions
        await outbox._notice.until(
            lambda: done.worker is not None and done.worker.done.groups == 6 and outbox.empty
        )
    assert outbox.accepted == 2  # the first of all, and the one that had arrived before
    assert dict(outbox.rejected) == {"stale": 2, "internal": 1, "too_large": 1}
    assert hub.tries == 3 + 1 + 2 + MAX_TRIES + 1


@in_trio
async def test_a_verdict_that_comes_later_is_counted_and_told(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    hub.order(2)
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        outbox = running.node._parts.outbox
        await hub.changed.until(lambda: hub.answered() == 2)
        verdict = Receipt(
            run_id=RUN_ID, lease_id=next(iter(hub.submissions)), accepted=False,
            code="audit_margin", sentence="A token is another one.", at=time.time(),
        )  # fmt: skip
        hub.verdicts.append(verdict)
        hub.order(1)
        await hub.changed.until(lambda: running.of(Verdict))
        assert running.of(Verdict) == [Verdict(code="audit_margin", message=verdict.sentence)]
        await until(lambda: outbox.accepted == 2)
        assert outbox.rejected == {"audit_margin": 1}


def test_a_banned_node_ends_and_says_why(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    async def main() -> None:
        hub.publish(0, adapters[0])
        hub.order(1)
        async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path):
            await hub.changed.until(lambda: hub.answered() == 1)
            hub.banned = "this node is banned from the run: it cheats."
            await trio.sleep_forever()

    with pytest.raises(BannedError, match="it cheats") as banned:
        trio.run(main)
    assert banned.value.exit_code == 13


@in_trio
async def test_a_stopped_node_hands_in_what_runs_and_gives_back_the_rest(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        async with running.engine.hold:
            hub.order(2)
            await hub.changed.until(lambda: len(running.engine.batches) == 2)
            hub.order(2)
            await hub.changed.until(lambda: len(hub.granted) == 4)
            running.node._sessions.stop()
            hub.order(1)  # too late for this node, unless a request of it is still waiting
            await hub.changed.until(lambda: len(hub.returned) >= 2)
            assert not running.node._sessions.over
        await running.node._parts.notice.until(lambda: running.node._sessions.over)
        assert running.node.finish() == 0
    assert hub.answered() == 2
    assert set(hub.granted) == set(hub.submissions) | set(hub.returned)


@in_trio
async def test_a_batch_that_the_engine_cannot_do_is_given_back_after_three_tries(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    hub.order(1, prompt=pack_tokens([5] * (CONTEXT + 1)))  # the run allows it, the model does not
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: len(hub.returned) == 1)
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 1)
    assert [len(jobs) for jobs in running.engine.batches] == [4, 4, 4, 4]
    assert hub.returned == [(1).to_bytes(16, "big")]


@in_trio
async def test_leases_that_are_not_sane_are_given_back(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    hub.order(1, node=bytes(32))
    hub.order(1, expires_at=1.0)
    hub.order(1, group_size=64)
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: len(hub.returned) == 3)
    assert not running.engine.batches


@in_trio
async def test_a_version_that_computes_nonsense_is_passed_over(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    bad = make_adapter(base, tmp_path / "bad", 7)
    weights = bad / "adapter_model.safetensors"
    save_file({k: torch.full_like(v, 3e38) for k, v in load_file(weights).items()}, weights)
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Version))
        hub.publish(1, bad)
        await hub.changed.until(lambda: running.of(Trouble))
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 1)
        hub.publish(2, adapters[2])
        await hub.changed.until(lambda: running.of(Version)[1:])
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 2)
    assert [check_group(hub, one, base, adapters).version for one in hub.granted] == [0, 2]


@in_trio
async def test_only_the_last_versions_stay_on_disk(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        for version in range(5):
            hub.publish(version, make_adapter(base, tmp_path / str(version), 20 + version))
            await hub.changed.until(lambda: len(running.of(Version)) > version)  # noqa: B023
        policies = running.node._parts.policies
        await until(lambda: len(running.store.complete()) == 3)
        kept = sorted(artifact.manifest.version for artifact in running.store.complete())
        assert kept == [0, 3, 4]  # 0 is the base
        assert list(policies._held) == [4]


@in_trio
async def test_downloads_are_shown_and_the_hub_is_told_of_each_once(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer:
        async with a_node(hub, peer.addresses, tmp_path) as running:
            await hub.changed.until(lambda: len(hub.obtained) == 2)
        async with a_node(hub, peer.addresses, tmp_path) as again:  # it has both of them
            hub.order(1)
            await hub.changed.until(lambda: hub.answered() == 1)
            assert not again.of(Fetched)
    ends = [event for event in running.of(Fetched) if event.done_bytes == event.total_bytes]  # type: ignore[attr-defined]
    assert [event.what for event in ends] == ["the base model", "version 0"]  # type: ignore[attr-defined]
    artifacts = {artifact.id: artifact for artifact in running.store.complete()}
    for told in hub.obtained:
        assert (told.from_hub, told.from_peers) == (artifacts[told.artifact].layout.total_bytes, 0)
    assert {told.artifact for told in hub.obtained} == set(artifacts)


def a_step_further(adapter: Path, folder: Path) -> Path:
    """The adapter after one small update."""
    shutil.copytree(adapter, folder)
    weights = folder / "adapter_model.safetensors"
    torch.manual_seed(0)
    save_file({k: v + 1e-4 * torch.randn_like(v) for k, v in load_file(weights).items()}, weights)
    return folder


@in_trio
async def test_a_version_comes_by_its_delta_and_is_the_same(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    versions = [adapters[0], a_step_further(adapters[0], tmp_path / "v1")]
    hub.publish(0, versions[0])
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Version))
        hub.publish(1, versions[1], delta=tmp_path / "delta")
        await hub.changed.until(lambda: running.of(Version)[1:])
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 1)
        await hub.changed.until(
            lambda: [event for event in running.of(Progress) if event.bytes_saved > 0]  # type: ignore[attr-defined]
        )
        await hub.changed.until(lambda: len(hub.obtained) == 3)
    assert not running.of(Trouble)
    (lease_id,) = hub.granted
    assert check_group(hub, lease_id, base, versions).version == 1
    newest, delta = hub._adapter, hub._delta
    assert newest is not None
    assert delta is not None
    assert hub.obtained[-1].artifact == newest.id
    assert hub.obtained[-1].from_hub == delta.layout.total_bytes


@in_trio
async def test_a_delta_that_is_none_is_said_and_the_snapshot_fetched(
    hub: SmallHub, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    (tmp_path / "delta").mkdir()
    (tmp_path / "delta" / "delta").write_bytes(b"no delta")
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Version))
        hub.publish(1, adapters[1], delta=tmp_path / "delta")
        await hub.changed.until(lambda: running.of(Version)[1:])
        hub.order(1)
        await hub.changed.until(lambda: hub.answered() == 1)
    (trouble,) = running.of(Trouble)
    assert "The delta to version 1 is of no use" in trouble.message  # type: ignore[attr-defined]
    (lease_id,) = hub.granted
    assert check_group(hub, lease_id, base, adapters).version == 1


@in_trio
async def test_a_version_beyond_belief_is_said_and_passed_over(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Version))
        hub.publish(2**31 - 1, adapters[1])
        await hub.changed.until(lambda: running.of(Trouble))
        hub.publish(1, adapters[2])
        await hub.changed.until(lambda: running.of(Version)[1:])
    assert [event.version for event in running.of(Version)] == [0, 1]  # type: ignore[attr-defined]
    assert "version 2147483647 after version 0" in running.of(Trouble)[0].message  # type: ignore[attr-defined]


@in_trio
async def test_a_download_that_was_broken_off_goes_on_and_says_so(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    base = hub._base
    first = hub._store.read_chunk(base.id, 0)
    assert first is not None
    with Store(tmp_path / "node-store", cap_bytes=None) as store, store.begin(base) as partial:
        partial.write(0, first)
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: running.of(Version))
    told = [event for event in running.of(Fetched) if event.what == "the base model"]  # type: ignore[attr-defined]
    assert {event.resumed_bytes for event in told} == {len(first)}  # type: ignore[attr-defined]
    assert told[-1].from_hub_bytes == base.layout.total_bytes - len(first)  # type: ignore[attr-defined]


@in_trio
async def test_a_hub_that_will_not_hear_of_downloads_is_worked_for(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.hears_of_downloads = False
    hub.publish(0, adapters[0])
    hub.order(1)
    async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
        await hub.changed.until(lambda: hub.answered() == 1)
        assert not running.of(Trouble)


@in_trio
async def test_a_chunk_that_rotted_on_disk_is_fetched_again(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    async with hub.on_the_network() as peer:
        async with a_node(hub, peer.addresses, tmp_path) as running:
            await hub.changed.until(lambda: running.of(Version))
            rotten = [running.store.path(artifact.id) for artifact in running.store.complete()]
        for folder in rotten:
            weights = max((folder or Path()).iterdir(), key=lambda file: file.stat().st_size)
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
        hub.order(1)
        async with a_node(hub, peer.addresses, tmp_path):
            await hub.changed.until(lambda: hub.answered() == 1)


@in_trio
async def test_a_hub_that_moved_is_found_through_the_directory(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.publish(0, adapters[0])
    hub.order(1)
    _, dead = fixed_address(hub)
    async with (
        hub.on_the_network() as peer,
        open_directory(listen=["/ip4/127.0.0.1/tcp/0"], deadline_s=30) as directory,
    ):
        record = RunRecord(
            run_id=RUN_ID,
            version=0,
            addresses=(*peer.addresses, "/ip4/127.0.0.1/tcp/1", "nonsense"),
            adapter=None,
            expires_at=next_expiry(previous=0.0, now=time.time(), life_s=600),
        )
        await directory.publish(seal(hub.identity, record))
        async with a_node(hub, (*dead, *dead, directory.addresses[0]), tmp_path) as running:
            await hub.changed.until(lambda: hub.answered() == 1)
            programs = psutil.Process().children(recursive=True)
            assert [program.name() for program in programs].count("p2pd") == 1  # not the node's
    assert [event.step for event in running.of(Step)][:7] == [  # type: ignore[attr-defined]
        *["connecting to the hub"] * 4,
        "asking the directory where the hub is",
        "connecting to the hub",
        "greeting the hub",
    ]


def test_the_directory_is_asked_now_and_then() -> None:
    assert [n for n in range(12) if session_module.asks_directory(n)] == [3, 7, 11]


def _other_signer(hub: SmallHub) -> None:
    hub.signer = Identity.create()


def _other_run(hub: SmallHub) -> None:
    hub.description = {"run_id": "other"}


def _other_base(hub: SmallHub) -> None:
    hub.description = {"base": bytes(32)}


def _refuse(hub: SmallHub) -> None:
    def latest() -> Latest:
        raise PeerRefusedError("this hub serves run 'other'", code="wrong_run")

    hub._latest = latest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("spoil", "error", "complaint"),
    [
        (_refuse, ConfigError, "serves run 'other'"),
        (_other_signer, SignatureError, "is signed by"),
        (_other_run, EchoError, "described run 'other'"),
        (_other_base, ManifestError, "base model is not the one"),
    ],
)
def test_a_hub_that_is_not_what_it_must_be_is_not_worked_for(
    hub: SmallHub,
    tmp_path: Path,
    spoil: Callable[[SmallHub], None],
    error: type[EchoError],
    complaint: str,
) -> None:
    spoil(hub)

    async def main() -> None:
        async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path):
            await trio.sleep_forever()

    with pytest.raises(error, match=complaint):
        trio.run(main)


def test_a_run_that_was_set_back_or_changed_ends_the_node(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    async def set_back() -> None:
        hub.publish(1, adapters[1])
        async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path) as running:
            await hub.changed.until(lambda: running.of(Version))
            hub.publish(0, adapters[0])
            await trio.sleep_forever()

    with pytest.raises(RollbackError, match="version 0 as its newest, after version 1"):
        trio.run(set_back)


def test_answers_that_cannot_be_handed_in_show_in_the_exit_code(
    hub: SmallHub, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "FAREWELL_S", 0.0)
    monkeypatch.setattr(session_module, "CONNECT_S", 1.0)

    async def main() -> None:
        hub.publish(0, adapters[0])
        address, dialled = fixed_address(hub)
        async with a_node(hub, dialled, tmp_path) as running:
            async with running.engine.hold:
                async with hub.on_the_network(address):
                    hub.order(1)
                    await hub.changed.until(lambda: running.engine.batches)
                running.node._sessions.stop()
            sessions = running.node._sessions
            await running.node._parts.notice.until(lambda: sessions.over)
            running.node.finish()

    with pytest.raises(NetError, match="1 groups could not be handed in"):
        trio.run(main)
