"""Whether the lab's links are what they claim to be. Counts bytes and compares with the lab's own
arithmetic; where a clock decides, only in the direction in which a busy machine cannot err.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from netlab import Link, open_lab, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no network lab: {why_not()}")

RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 4001)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    with connection:
        first = connection.recv(1)
        connection.sendall(first)
        began, size = time.monotonic(), 0
        while data := connection.recv(1 << 18):
            size += len(data)
        print(size / (time.monotonic() - began), flush=True)
"""
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 4001), timeout=float(sys.argv[3])) as connection:
    began = time.monotonic()
    connection.sendall(b"x")
    connection.recv(1)
    print(time.monotonic() - began, flush=True)
    connection.sendall(bytes(int(sys.argv[2])))
"""


def _transfer(link: Link, size: int, *, rtt_s: float = 0.0) -> tuple[float, float]:
    """Round trip in seconds and bytes a second, from a host with this link to one without caps."""
    with open_lab({"from": link, "to": Link()}, rtt_s=rtt_s) as hosts:
        receiver = hosts["to"].start(
            *(sys.executable, "-c", RECEIVER, hosts["to"].address),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        sent = hosts["from"].namespace.run(
            *(sys.executable, "-c", SENDER, hosts["to"].address, str(size), "60")
        )
        return float(sent), float(receiver.stdout.readline())


def test_a_capped_uplink_carries_its_rate_and_no_more() -> None:
    _, rate = _transfer(Link(up=4e6), 4_000_000)
    # a first bucketful is free; the lower limit is for bits that should have been bytes
    assert 0.15 * 4e6 < rate < 1.04 * 4e6


def test_a_round_trip_takes_at_least_as_long_as_asked() -> None:
    rtt_s, _ = _transfer(Link(), 1000, rtt_s=0.1)
    assert 0.1 <= rtt_s < 0.3


def test_nobody_connects_to_a_firewalled_host_and_it_connects_to_others() -> None:
    with open_lab({"inside": Link(firewalled=True), "outside": Link()}) as hosts:
        for name in ("inside", "outside"):
            receiver = hosts[name].start(
                *(sys.executable, "-c", RECEIVER, hosts[name].address),
                stdout=subprocess.PIPE,
                text=True,
            )
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listening\n"
        out = hosts["inside"].start(
            sys.executable, "-c", SENDER, hosts["outside"].address, "1", "60"
        )
        into = hosts["outside"].start(
            *(sys.executable, "-c", SENDER, hosts["inside"].address, "1", "1"),
            stderr=subprocess.DEVNULL,
        )
        assert out.wait() == 0
        assert into.wait() != 0


def test_nothing_is_left_when_its_owner_is_killed() -> None:
    script = (
        "import subprocess, sys\n"
        "from netlab import Link, open_lab\n"
        "with open_lab({'a': Link(up=1e6)}, rtt_s=0.01) as hosts:\n"
        "    command = ['sh', '-c', 'echo here; exec sleep 1000']\n"
        "    hosts['a'].start(*command, stdout=subprocess.PIPE).stdout.readline()\n"
        "    print(*(process.pid for process in hosts['a'].processes), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert owner.stdout is not None
    children = [int(number) for number in owner.stdout.readline().split()]
    assert len(children) == 2  # the delay line and ours
    rooms = {Path(f"/proc/{child}/ns/net").readlink() for child in children}
    assert len(rooms) == 2
    ends = [os.pidfd_open(child) for child in children]
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    for end in ends:
        assert select.select([end], [], [], 60)[0], "a child outlived its owner"
        os.close(end)
    assert not rooms & _namespaces()


def _namespaces() -> set[Path]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add((process / "ns" / "net").readlink())
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.mark.slow
def test_capped_and_delayed_links_carry_what_they_claim() -> None:
    """How good the lab is; half of what an idle machine shows, since tests share theirs."""
    for rtt_s in (0.05, 0.15):
        measured_s, rate = _transfer(Link(up=20e6), 200_000_000, rtt_s=rtt_s)
        assert rtt_s <= measured_s < rtt_s + 0.02
        assert 0.5 * 20e6 < rate < 1.02 * 20e6
