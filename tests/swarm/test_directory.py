"""The directory as it runs: real processes on loopback, honest and dishonest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from echo_p2p.directory.client import HivemindDirectory, open_directory
from echo_p2p.directory.identity import ensure_directory_identity
from echo_p2p.directory.records import next_expiry, record_id
from echo_p2p.envelope import seal
from echo_p2p.errors import DirectoryError
from echo_p2p.identity import Identity
from echo_p2p.wire import RunRecord

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ATTACKER = Path(__file__).with_name("directory_attacker.py")
REGULAR = b"\xc0"  # MessagePack nil: hivemind's mark of a value without subkey
DICTIONARY = b""
RUN = "demo"
DEADLINE_S = 30.0


def in_trio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            with trio.fail_after(90):
                await test(**fixtures)

        trio.run(bounded)

    return run


def record(hub: Identity, version: int, expiry: float, *, run_id: str = RUN) -> bytes:
    return seal(
        hub,
        RunRecord(
            run_id=run_id,
            version=version,
            addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/{hub.peer_id}",),
            adapter=bytes([version]) * 32,
            expires_at=expiry,
        ),
    )


def soon(seconds: float = 600.0) -> float:
    return next_expiry(previous=0.0, now=time.time(), life_s=seconds)


async def until_version(directory: HivemindDirectory, hub: Identity, version: int) -> None:
    """Ask until that version is there: peers that were apart find each other in their own time."""
    while True:
        found = await directory.find(RUN, hub.public_key)
        if found is not None and found.version == version:
            return
        await trio.sleep(0.1)


def processes_of(directory: HivemindDirectory) -> tuple[psutil.Process, psutil.Process]:
    """The directory process and its p2pd."""
    process = psutil.Process(directory.pid)
    (daemon,) = process.children()
    assert daemon.name() == "p2pd"
    return process, daemon


def all_end(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def session_members(session: int) -> list[psutil.Process]:
    """Processes of a session, whoever is their parent now."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                members.append(process)
    return members


def run_attacker(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ATTACKER), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def attack(address: str, offers: list[dict[str, Any]]) -> list[Any]:
    """What the peer at `address` answers to store requests made past all our own checks."""
    with run_attacker("store", address) as attacker:
        lines = "".join(json.dumps(offer) + "\n" for offer in offers)
        out, _ = attacker.communicate(lines, timeout=60)
    return [json.loads(line) for line in out.splitlines()]


@contextmanager
def liar(mode: str, address: str) -> Iterator[None]:
    with run_attacker("lie", mode, address) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdin is not None
        assert attacker.stdout.readline() == "joined\n"
        yield
        attacker.stdin.close()
        assert int(attacker.stdout.readline()) > 0, "nobody asked the liar"
        attacker.wait(timeout=20)


def offer(
    place: bytes, value: bytes, expiry: float, *, tag: bytes = REGULAR, in_cache: bool = False
) -> dict[str, Any]:
    return {
        "place": place.hex(),
        "value": value.hex(),
        "expiry": expiry,
        "tag": tag.hex(),
        "in_cache": in_cache,
    }


@in_trio
async def test_a_record_is_found_where_others_keep_it() -> None:
    hub = Identity.create()
    async with open_directory(listen=LOOPBACK, deadline_s=DEADLINE_S) as first:
        peers = first.addresses
        async with (
            open_directory(listen=LOOPBACK, initial_peers=peers, deadline_s=DEADLINE_S) as second,
            open_directory(listen=LOOPBACK, initial_peers=peers, deadline_s=DEADLINE_S) as third,
        ):
            assert await third.find(RUN, hub.public_key) is None
            await second.publish(record(hub, 1, soon()))
            await second.publish(record(hub, 2, soon()))
            psutil.Process(first.pid).kill()
            await first.lost.wait()
            async with open_directory(
                initial_peers=third.addresses, client_only=True, deadline_s=DEADLINE_S
            ) as node:
                assert node.addresses == ()
                found = await node.find(RUN, hub.public_key)
                assert found is not None
                assert found.version == 2
                assert await node.find("another-run", hub.public_key) is None
                assert await node.find(RUN, Identity.create().public_key) is None


@in_trio
async def test_a_client_publishes_and_calls_overlap() -> None:
    hub = Identity.create()
    async with (
        open_directory(listen=LOOPBACK, deadline_s=DEADLINE_S) as server,
        open_directory(
            initial_peers=server.addresses, client_only=True, deadline_s=DEADLINE_S
        ) as client,
    ):
        found: list[int] = []

        async def publish_and_find(number: int) -> None:
            run_id = f"run-{number}"
            await client.publish(record(hub, number, soon(), run_id=run_id))
            answer = await server.find(run_id, hub.public_key)
            assert answer is not None
            found.append(answer.version)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(publish_and_find, number)
        assert sorted(found) == list(range(20))


@in_trio
async def test_a_remote_peer_refuses_what_the_hub_did_not_sign_last() -> None:
    hub, other = Identity.create(), Identity.create()
    place = record_id(RUN, hub.public_key)
    older, newest = soon(500.0), soon(600.0)
    bomb = b"\xc1"
    for _ in range(400):  # nested extension types, each unpacked by a call within a call
        bomb = b"\xc9" + len(bomb).to_bytes(4, "big") + b"\x40" + bomb
    async with open_directory(listen=LOOPBACK, deadline_s=DEADLINE_S) as server:
        await server.publish(record(hub, 7, newest))
        good = record(hub, 7, newest)
        forged = bytearray(record(hub, 9, soon()))
        forged[-1] ^= 1
        refused = {
            "another key": offer(place, record(other, 9, soon(700.0)), soon(700.0)),
            "false signature": offer(place, bytes(forged), soon(700.0)),
            "unsigned": offer(place, b"hello", soon(700.0)),
            "empty": offer(place, b"", soon(700.0)),
            "older": offer(place, record(hub, 6, older), older),
            "lower version, later expiry": offer(place, record(hub, 6, older + 300), older + 300),
            "replay that lives longer": offer(place, good, newest + 100),
            "the same again": offer(place, good, newest),
            "expired": offer(place, record(hub, 9, time.time() - 1), time.time() - 1),
            "asks for a day": offer(place, record(hub, 9, soon(86400)), soon(86400)),
            "no end": offer(place, good, float("inf")),
            "not a number": offer(place, good, float("nan")),
            "a subkey": offer(place, good, newest, tag=b"\xa1x"),
            "a dictionary": offer(place, good, newest, tag=DICTIONARY),
            "a bomb": offer(place, bomb, newest, tag=DICTIONARY),
            "100 KiB": offer(place, bytes(100 << 10), soon(700.0)),
            "1 MiB": offer(place, bytes(1 << 20), soon(700.0)),
            "3.9 MiB": offer(place, bytes(39 << 20 // 10), soon(700.0)),
        }
        refused |= {f"{name}, cached": {**o, "in_cache": True} for name, o in refused.items()}
        answers = await trio.to_thread.run_sync(attack, server.addresses[0], list(refused.values()))
        assert [
            name for name, answer in zip(refused, answers, strict=True) if answer == [True]
        ] == []
        found = await server.find(RUN, hub.public_key)
        assert found is not None
        assert (found.version, found.expires_at) == (7, newest)

        later = newest + 10
        answers = await trio.to_thread.run_sync(
            attack, server.addresses[0], [offer(place, record(hub, 8, later), later)]
        )
        assert answers == [[True]], "the attacker's own way in is sound: a true record is kept"


@pytest.mark.parametrize("mode", ["dictionary", "regular"])
@in_trio
async def test_a_lying_peer_hides_nothing(mode: str) -> None:
    hub = Identity.create()
    async with open_directory(listen=LOOPBACK, deadline_s=DEADLINE_S) as server:
        with liar(mode, server.addresses[0]):
            assert await server.find(RUN, hub.public_key) is None
            await server.publish(record(hub, 3, soon()))
            async with open_directory(
                initial_peers=server.addresses, client_only=True, deadline_s=DEADLINE_S
            ) as node:
                for directory in (server, node):
                    found = await directory.find(RUN, hub.public_key)
                    assert found is not None
                    assert found.version == 3


@in_trio
async def test_the_address_lasts_and_peers_may_start_in_any_order(tmp_path: Path) -> None:
    hub = Identity.create()
    key = tmp_path / "directory.key"
    peer_id = ensure_directory_identity(key)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = (f"/ip4/127.0.0.1/tcp/{port}",)
    address = f"{listen[0]}/p2p/{peer_id}"
    async with open_directory(
        listen=LOOPBACK, initial_peers=(address,), deadline_s=DEADLINE_S
    ) as early:
        with pytest.raises(DirectoryError, match="none of the directory peers answers.*" + peer_id):
            async with open_directory(
                initial_peers=(address,), client_only=True, deadline_s=DEADLINE_S
            ):
                pass
        for version in (1, 2):  # the second time around, the peer has restarted
            async with open_directory(
                listen=listen, identity_path=key, deadline_s=DEADLINE_S
            ) as named:
                assert named.addresses == (address,)
                with pytest.raises(DirectoryError, match="another program does"):
                    async with open_directory(listen=listen, deadline_s=DEADLINE_S):
                        pass
                await early.publish(record(hub, version, soon()))
                await until_version(named, hub, version)
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"listen": ("/ip4/127.0.0.1/nonsense/1",)}, "p2pd does not start on"),
        ({"listen": ("/ip4/203.0.113.1/tcp/1",)}, "p2pd does not start on"),
        ({"initial_peers": ("/ip4/127.0.0.1/tcp/1",), "client_only": True}, "/p2p/<peer id>"),
        ({"initial_peers": ("nonsense/p2p/12D3KooW",), "client_only": True}, "/p2p/<peer id>"),
        ({"listen": LOOPBACK, "identity_path": Path("/nowhere/key")}, "/nowhere/key"),
    ],
)
@in_trio
async def test_a_start_that_cannot_be_says_why(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DirectoryError, match=why):
        async with open_directory(**options, deadline_s=DEADLINE_S):
            pass


@in_trio
async def test_a_peer_behind_a_router_is_known_by_what_it_announces() -> None:
    announce = ("/ip4/192.0.2.7/tcp/42421",)
    async with open_directory(listen=LOOPBACK, announce=announce, deadline_s=DEADLINE_S) as peer:
        (address,) = peer.addresses
        assert address.startswith(announce[0] + "/p2p/12D3KooW")


@in_trio
async def test_an_end_of_either_process_is_seen_and_leaves_nothing() -> None:
    hub = Identity.create()
    for victim in (0, 1):
        async with open_directory(listen=LOOPBACK, deadline_s=DEADLINE_S) as directory:
            processes = processes_of(directory)
            processes[victim].kill()
            await directory.lost.wait()
            for _ in range(2):
                with pytest.raises(DirectoryError, match=("ended with code -9", "p2pd")[victim]):
                    await directory.find(RUN, hub.public_key)
            assert await trio.to_thread.run_sync(all_end, list(processes))


@in_trio
async def test_a_stopped_process_costs_a_deadline_and_no_more() -> None:
    hub = Identity.create()
    async with open_directory(listen=LOOPBACK, deadline_s=5.0) as directory:
        process, _ = processes_of(directory)
        process.suspend()
        with pytest.raises(DirectoryError, match="did not answer Find in 5 s"):
            await directory.find(RUN, hub.public_key)
        process.resume()
        await directory.publish(record(hub, 1, soon()))
        found = await directory.find(RUN, hub.public_key)
        assert found is not None
        assert found.version == 1


GRANDPARENT = """
import sys, trio
from echo_p2p.directory.client import open_directory

async def main():
    async with open_directory(listen=("/ip4/127.0.0.1/tcp/0",), deadline_s=30) as directory:
        print(directory.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_program(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        process = psutil.Process(int(program.stdout.readline()))
        family = [process, *process.children(recursive=True)]
        assert [each.name() for each in family][1:] == ["p2pd"]
        program.send_signal(how)
        assert all_end(family)


@pytest.mark.parametrize("children", [1, 2])
def test_nothing_outlives_a_program_killed_while_it_starts(children: int) -> None:
    """Killed as soon as the directory process is there; and as soon as p2pd is."""
    with subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT], stdout=subprocess.DEVNULL
    ) as program:
        parent = psutil.Process(program.pid)
        while len(family := parent.children(recursive=True)) < children:
            assert program.poll() is None
        program.kill()
        session = family[0].pid
        assert all_end(family)
        assert all_end(session_members(session))


def test_the_directory_process_imports_neither_torch_nor_libp2p() -> None:
    code = (
        "import sys, echo_p2p.directory.process; "
        "print([m for m in ('torch', 'libp2p', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out == "[]\n"
