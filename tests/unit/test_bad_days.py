"""Bad days of a volunteer: each ends, or goes on, with a sentence that a person can act on.

Others have their tests elsewhere: bootstrap files and portals that answer for them
(test_bootstrap), the steps to the hub (test_probe), keys, ports and folders at the command
(test_node_cli), a hub that goes away, and engines that die (test_node, test_engine_process).
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio
from net_support import ANY_PORT, in_trio
from probed_hub import RUN_ID, describe, probed_hub

from echo_node.clock import complaint
from echo_node.door import enter, why_unreachable
from echo_node.engines.patience import open_log
from echo_node.hub import Hub
from echo_node.planner import UNPLANNED, Planner, Unplanned
from echo_p2p import versions
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import render_bootstrap
from echo_p2p.errors import (
    BannedError,
    BootstrapError,
    DiskFullError,
    FitError,
    PeerRefusedError,
    UnreachableError,
    VersionError,
)
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import Versions

COMMAND = [sys.executable, "-m", "echo_node.cli", "join"]
SOMEBODY = Identity.create().peer_id


# --- the disk -----------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(most: int) -> Iterator[None]:
    """A disk on which no file can grow further: writes fail with EFBIG, as a quota's would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def an_artifact(tmp_path: Path, identity: Identity, size: int) -> tuple[Artifact, Path]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(os.urandom(size))
    manifest = build_manifest(
        base, run_id=RUN_ID, kind="base", version=0, chunk_bytes=65536, created_at=1.0
    )
    return Artifact.sign(identity, manifest), base


@in_trio
async def test_a_disk_that_fills_in_mid_download_says_so_and_the_rest_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.create()
    artifact, base = an_artifact(tmp_path, identity, 600_000)
    real, written = os.pwrite, 0

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal written
        if written >= 200_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += len(data)
        return real(descriptor, data, offset)

    with (
        Store(tmp_path / "hub", cap_bytes=None) as theirs,
        Store(tmp_path / "node", cap_bytes=None) as ours,
    ):
        theirs.add(artifact, base)
        async with open_peer(identity, [ANY_PORT]) as hub, open_peer(SELF, [ANY_PORT]) as peer:
            Exchange(hub, theirs, hub=HubSide()).offer(artifact.id)
            await peer.connect(hub.addresses, deadline_s=10)
            exchange = Exchange(peer, ours)
            monkeypatch.setattr("echo_p2p.artifact.disk.os.pwrite", pwrite)
            with pytest.raises(DiskFullError, match=r"[Nn]o space left") as caught:
                await exchange.fetch(artifact, hub.peer_id, deadline_s=30)
            assert "Free some disk space." in caught.value.fix
            assert "goes on from there" in caught.value.fix
            monkeypatch.undo()
            resumed = 0

            def note(progress: object) -> None:
                nonlocal resumed
                resumed = max(resumed, progress.resumed_bytes)  # type: ignore[attr-defined]

            await exchange.fetch(artifact, hub.peer_id, deadline_s=30, progress=note)
            assert resumed > 0
            assert ours.path(artifact.id) is not None


SELF = Identity.create()


def test_a_disk_that_is_full_before_the_first_byte(tmp_path: Path) -> None:
    artifact, _ = an_artifact(tmp_path, SELF, 600_000)
    with Store(tmp_path / "node", cap_bytes=None) as store:
        with files_of_at_most(100_000), pytest.raises(DiskFullError, match="too large") as caught:
            store.begin(artifact).__enter__()
        assert "Free some disk space." in caught.value.fix
        store.begin(artifact).__enter__()  # and with room it begins


def test_join_on_a_disk_that_takes_nothing_more_is_a_sentence(tmp_path: Path) -> None:
    with files_of_at_most(0):
        done = subprocess.run(
            [*COMMAND], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
            env={**environment(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off
            check=False, restore_signals=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "Free some disk space, or name another folder" in done.stdout.decode()
    assert "Traceback" not in done.stdout.decode()


def test_an_engine_s_log_that_cannot_be_written_keeps_nobody_from_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(tmp_path / "logs" / "engine.log") as write:
        write("first")
        with files_of_at_most(6):
            write("second")
            write("third")
    assert (tmp_path / "logs" / "engine.log").read_text() == "first\n"
    assert caplog.text.count("cannot be written") == 1


# --- the way to the hub -------------------------------------------------------------------------


@asynccontextmanager
async def portal() -> AsyncIterator[str]:
    """What answers in a hotel's network, whoever is called."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        await stream.send_all(b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n")

    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(start)
        port = listener.socket.getsockname()[1]
        yield f"/ip4/127.0.0.1/tcp/{port}/p2p/{SOMEBODY}"
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_log_in_page_in_the_place_of_the_hub() -> None:
    async with portal() as address, open_peer(SELF, [ANY_PORT]) as peer:
        with pytest.raises(UnreachableError) as caught:
            await peer.connect([address], deadline_s=15)
        error = await why_unreachable("r", [address], caught.value)
    assert "a web page answers in its place" in error.message
    assert "Open a browser, log in" in error.fix


@in_trio
async def test_names_that_cannot_be_looked_up() -> None:
    address = f"/dns4/hub.invalid/tcp/42420/p2p/{SOMEBODY}"
    async with open_peer(SELF, [ANY_PORT]) as peer:
        with pytest.raises(UnreachableError) as caught:
            await peer.connect([address], deadline_s=15)
        error = await why_unreachable("r", [address], caught.value)
    assert "the name hub.invalid cannot be resolved" in error.message


class Door:
    """A hub that refuses a greeting as it is told; the network under it is tested elsewhere."""

    def __init__(self, code: str, theirs: Versions | None = None) -> None:
        self.code, self.theirs = code, theirs
        self.protocols: list[int | None] = []

    async def hello(self, engine: str, *, protocol: int | None = None) -> str:
        self.protocols.append(protocol)
        if protocol is not None and protocol != 2:
            return f"greeted in {protocol}"
        raise PeerRefusedError(f"refused ({self.code}).", code=self.code)

    async def versions(self) -> Versions:
        if self.theirs is None:
            raise UnreachableError("it does not speak /echo-p2p/versions/1.")
        return self.theirs


async def entering(door: Door) -> object:
    return await enter(door, "torch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("door", "kind", "fix"),
    [
        (Door("banned"), BannedError, "unban your peer id"),
        (Door("wrong_run"), BootstrapError, "newest bootstrap file"),
        (Door("wrong_protocol"), VersionError, "Yours: "),
        (Door("wrong_protocol", Versions(protocols=(9,), needs="0.9")), VersionError, "Upgrade it"),
        (Door("wrong_protocol", Versions(protocols=(1,), needs="0.0")), VersionError, "the hub."),
        (Door("wrong_protocol", Versions(protocols=(2,), needs="0.1")), VersionError, "hub's log"),
        (Door("too_many_keys"), PeerRefusedError, ""),
    ],
)
def test_each_refusal_at_the_door_says_what_to_do(
    door: Door, kind: type[Exception], fix: str
) -> None:
    with pytest.raises(kind) as caught:
        trio.run(entering, door)
    assert fix in str(caught.value)


def test_an_older_protocol_in_common_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.negotiate, "__kwdefaults__", {
        **versions.negotiate.__kwdefaults__, "ours": frozenset({1, 2}),
    })  # fmt: skip
    door = Door("wrong_protocol", Versions(protocols=(0, 1), needs="0.0"))
    assert trio.run(entering, door) == "greeted in 1"


@in_trio
async def test_a_hub_says_its_versions_over_the_network() -> None:
    async with probed_hub() as hub, open_peer(SELF, [ANY_PORT]) as peer:
        await peer.connect(hub.addresses, deadline_s=10)
        said = await Hub(peer, hub.peer_id, RUN_ID).versions()
    assert 2 in said.protocols


# --- the clock ----------------------------------------------------------------------------------


def test_a_clock_that_is_off_by_a_day_is_said_with_what_to_do() -> None:
    said = complaint(-86_400.0)
    assert "1 days ahead of the hub's; the work goes by the hub's." in said
    assert "Set it" in said
    assert complaint(2.0) == ""


# --- the machine --------------------------------------------------------------------------------


@in_trio
async def test_a_model_that_cannot_fit_is_refused_before_its_weights_come(tmp_path: Path) -> None:
    identity, base = Identity.create(), tmp_path / "base"
    base.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
        "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    (base / "config.json").write_text(json.dumps(config))
    (base / "model.safetensors").write_bytes(os.urandom(200_000))
    manifest = build_manifest(
        base, run_id=RUN_ID, kind="base", version=0, chunk_bytes=65536, created_at=1.0
    )
    artifact = Artifact.sign(identity, manifest)
    with (
        Store(tmp_path / "hub", cap_bytes=None) as theirs,
        Store(tmp_path / "node", cap_bytes=None) as ours,
    ):
        theirs.add(artifact, base)
        async with open_peer(identity, [ANY_PORT]) as hub, open_peer(SELF, [ANY_PORT]) as peer:
            served = Exchange(hub, theirs, hub=HubSide())
            served.offer(artifact.id)
            await peer.connect(hub.addresses, deadline_s=10)
            with pytest.raises(FitError) as caught:
                await _plan(Planner(), peer, hub, ours, artifact)
            assert "the model needs" in caught.value.message
            assert caught.value.fix
            assert ours.unfinished() == []
            (base / "config.json").write_text('{"model_type": "mamba"}')
            unknown = Artifact.sign(
                identity,
                build_manifest(
                    base, run_id=RUN_ID, kind="base", version=0, chunk_bytes=65536, created_at=2.0
                ),
            )
            theirs.add(unknown, base)
            served.offer(unknown.id)
            plan = await _plan(Planner(), peer, hub, ours, unknown)
            assert plan == Unplanned(
                "the base's config.json does not say hidden_size: its architecture is not known "
                "here.",
                UNPLANNED,
            )


async def _plan(
    planner: Planner, peer: Peer, hub: Peer, store: Store, artifact: Artifact
) -> object:
    return await planner.plan(peer, hub.peer_id, store, artifact, describe(base=artifact.id))


# --- the command --------------------------------------------------------------------------------


def bootstrap_file(tmp_path: Path, *, expires: datetime | None = None) -> Path:
    file = tmp_path / "b.toml"
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{SOMEBODY}"
    file.write_text(
        render_bootstrap(
            network="n", run_id="r", hub_key=SOMEBODY, addresses=(address,) * 3, expires=expires
        )
    )
    return file


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "ECHO_NODE_HOME": str(tmp_path / "h")}


def test_join_names_the_check_that_explains_its_failure(tmp_path: Path) -> None:
    file = bootstrap_file(tmp_path, expires=datetime(2020, 1, 1, tzinfo=UTC))
    done = subprocess.run(
        [*COMMAND, "--bootstrap", str(file)],
        capture_output=True, text=True, timeout=120, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    *_, said, hint = done.stderr.splitlines()
    assert "expired on 01 January 2020" in said
    assert "Ask the run's operator for a newer file" in said
    assert hint.startswith(f"To look into it: echo-node doctor bootstrap --bootstrap {file}")


STOPS = (signal.SIGTERM, signal.SIGINT)


def test_being_stopped_at_any_point_of_the_start_is_clean(tmp_path: Path) -> None:
    """After so many times what the first word takes: no traceback, and no process is left.

    Before that word; after it, while the engine's process and the network's libraries load; later.
    """
    command = [*COMMAND, "--bootstrap", str(bootstrap_file(tmp_path)), "--json"]
    began = time.monotonic()
    whole = _started(command, tmp_path)
    _wait_for_first_event(whole)
    took = time.monotonic() - began
    _stop(whole, signal.SIGTERM)
    for share, number in zip((0.5, 0.95, 1.5, 3.0), (*STOPS, *STOPS), strict=True):
        stopped = _started(command, tmp_path)
        time.sleep(took * share)  # where it then is differs from run to run: any place will do
        _stop(stopped, number)


def _started(command: list[str], tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(tmp_path),
        # a shell in the background starts its programs deaf to Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def _wait_for_first_event(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())


def _stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode in (0, 130, -number), said
    assert "Traceback" not in said
    assert not psutil.wait_procs(children, timeout=60)[1]
