"""A network of hosts on one machine, each with a link of its own: rates, delay, a firewall.

Every host is a Linux network namespace behind a router, which is one too:

    host ── veth ── d1 [down: tbf] ─┐            d: to and from the host
                    u1 [up: tbf] ═ c1 ── tun     u, c: a pair of ends that what the host sends
                                                 goes through, so that it queues in the router

- Rates are of TCP payload: the wire carries 1514 bytes for every 1448, so a TCP stream can reach
  the rate asked for and nothing can exceed it.
- The queue of a capped link holds `QUEUE_S` at its rate, and `LEAST_QUEUE_BYTES`, as that of a
  modem does, and drops what does not fit. It is not in the host: a host's own queueing discipline
  would hold its senders back (TCP small queues) before anything is dropped.
- A bucket holds `BURST_BYTES`: one GSO packet with the headers of its segments. A smaller bucket
  makes the kernel cut each packet into 45; a larger one lets more through at once after a pause.
- There is no netem here. Delay comes from `delay_line`, a process that holds every packet for half
  a round trip.
- TCP is as the kernel has it by default (cubic, buffers of 4 and 6 MiB), whatever this machine is
  set to.

Nothing is left behind. Namespaces have no names: they exist by a descriptor that this process
holds and by the processes in them, and those are killed when the lab is closed or this process
ends, however it does. Nothing is set or created outside of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIRE, PAYLOAD = 1514, 1448  # bytes of a full Ethernet frame, and what TCP carries in it
BURST_BYTES = 72 * 1024
QUEUE_S = 0.1
LEAST_QUEUE_BYTES = 128 * 1024
MAX_HOSTS = 250
CONGESTION_CONTROL = "cubic"  # set by route: only the first namespace may set the default to it
EPHEMERAL_PORT = 32768  # outgoing connections use ports from here on
_CLONE_NEWNET = 0x40000000
_DELAYED = 2000  # the routing table that leads into the delay line
_TOOLS = ("ip", "tc", "nsenter", "setpriv", "sysctl")
_SETTINGS = (
    "net.ipv4.tcp_rmem=4096 131072 6291456",
    "net.ipv4.tcp_wmem=4096 16384 4194304",
    "net.ipv4.tcp_no_metrics_save=1",
    f"net.ipv4.ip_local_port_range={EPHEMERAL_PORT} 60999",
)
_ROUTER_SETTINGS = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.default.send_redirects=0",
)


class LabError(Exception):
    """The lab could not be built as asked."""


@dataclass(frozen=True)
class Link:
    """How a host is connected. Rates in bytes of TCP payload a second; None: as the CPU allows.

    `firewalled`: what comes to a port under `EPHEMERAL_PORT` is dropped, so that the host can
    connect to others and nobody to it.
    """

    up: float | None = None
    down: float | None = None
    firewalled: bool = False


class Namespace:
    """A network namespace that lives as long as this object is open or a process is in it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` in here and kills them when we die."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", *arguments]

    def run(self, *arguments: str, text: str = "") -> str:
        """Run a command to its end; its output. LabError if it fails."""
        done = subprocess.run(
            self.command(arguments), input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LabError(f"{' '.join(arguments)}: {done.stderr.strip()}\n{text}")
        return done.stdout

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class Host:
    """One host of a lab."""

    name: str
    address: str
    link: Link
    namespace: Namespace
    processes: list[subprocess.Popen[Any]]
    """Of the whole lab, the delay line among them."""
    _router: Namespace
    _number: int

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a program here; killed with the lab. `options` are those of Popen.

        To be called from the thread that made the lab: it is that thread's end that the kernel
        takes for our death. The process id is the program's own.
        """
        process = subprocess.Popen(self.namespace.command(arguments), **options)
        self.processes.append(process)
        return process

    def traffic(self) -> tuple[int, int]:
        """Bytes that its link has brought and taken so far; what was dropped does not count."""
        counters = {}
        for line in self._router.run("cat", "/proc/net/dev").splitlines():
            device, _, numbers = line.partition(":")
            counters[device.strip()] = numbers.split()
        down, up = f"d{self._number}", f"u{self._number}"
        taken = counters[up][8] if up in counters else counters[down][0]
        return int(counters[down][8]), int(taken)


@functools.cache
def why_not() -> str | None:
    """What this machine lacks for a lab; None if nothing."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"missing commands: {', '.join(missing)}"
    try:
        with open_lab({"a": Link(up=1e6)}, rtt_s=0.002):
            return None
    except (OSError, LabError) as error:
        return f"no network namespaces here: {error}"


@contextmanager
def open_lab(links: Mapping[str, Link], *, rtt_s: float = 0.0) -> Iterator[dict[str, Host]]:
    """Hosts by name for the length of a block, `rtt_s` seconds apart from each other and back.

    Raises:
        OSError: this process may make no namespaces.
        LabError: the kernel cannot do what is asked.
    """
    if len(links) > MAX_HOSTS:
        raise LabError(f"{len(links)} hosts; at most {MAX_HOSTS} have addresses")
    processes: list[subprocess.Popen[Any]] = []
    with ExitStack() as stack:
        router, *rooms = _namespaces(1 + len(links), stack)
        stack.callback(_end, processes)
        router.run("sysctl", "-q", "-w", *_SETTINGS, *_ROUTER_SETTINGS)
        router.run("ip", "link", "set", "lo", "up")
        if rtt_s:
            _delay(router, rtt_s / 2, processes)
        hosts = {}
        for number, ((name, link), room) in enumerate(zip(links.items(), rooms, strict=True), 1):
            _connect(router, room, number, link, delayed=rtt_s > 0)
            hosts[name] = Host(name, _address(number), link, room, processes, router, number)
        yield hosts


def _namespaces(count: int, stack: ExitStack) -> list[Namespace]:
    made = []
    with ThreadPoolExecutor(max_workers=1) as elsewhere:  # a thread that leaves our namespace
        for _ in range(count):
            namespace = Namespace(elsewhere.submit(_unshare).result())
            stack.callback(namespace.close)
            made.append(namespace)
    return made


def _unshare() -> int:
    """A descriptor of a new namespace, which the calling thread is in from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what nobody is left to read
                    stream.close()


def _address(number: int) -> str:
    return f"10.77.{number}.2"


def _connect(router: Namespace, room: Namespace, number: int, link: Link, *, delayed: bool) -> None:
    """Give a host its link. Addresses: 10.77.n.2 here, 10.77.n.1 at the router."""
    down, up, core = f"d{number}", f"u{number}", f"c{number}"
    ip = [
        f"link add {down} type veth peer name eth0 netns {room.path}",
        f"address add 10.77.{number}.1/24 dev {down}",
        f"link set {down} up",
    ]
    arrives_at = down
    if link.up is not None:
        ip += [
            f"link add {up} address {_mac(number)} type veth peer name {core}",
            f"link set {core} address {_mac(number, end=1)}",
            f"link set {up} up",
            f"link set {core} up",
            f"neighbour add 10.78.0.1 lladdr {_mac(number, end=1)} dev {up} nud permanent",
            f"route add default via 10.78.0.1 dev {up} onlink table {number}",
            f"rule add iif {down} lookup {number}",
        ]
        arrives_at = core
    if link.firewalled:
        ports = f"1-{EPHEMERAL_PORT - 1}"
        ip.append(f"rule add to {_address(number)} ipproto tcp dport {ports} blackhole priority 9")
    if delayed:
        ip.append(f"rule add iif {arrives_at} lookup {_DELAYED}")
    router.run("ip", "-batch", "-", text="\n".join(ip))
    tc = [_bucket(device, rate) for device, rate in ((down, link.down), (up, link.up)) if rate]
    if tc:
        router.run("tc", "-batch", "-", text="\n".join(tc))
    room.run("sysctl", "-q", "-w", *_SETTINGS)
    inside = [
        "link set lo up",
        f"address add {_address(number)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via 10.77.{number}.1 congctl {CONGESTION_CONTROL}",
    ]
    room.run("ip", "-batch", "-", text="\n".join(inside))


def _mac(number: int, *, end: int = 0) -> str:
    return f"02:77:00:00:{end:02x}:{number:02x}"


def _bucket(device: str, rate: float) -> str:
    wire = rate * WIRE / PAYLOAD
    limit = max(LEAST_QUEUE_BYTES, round(wire * QUEUE_S))
    return (
        f"qdisc add dev {device} root tbf"
        f" rate {round(8 * wire)}bit burst {BURST_BYTES} limit {limit}"
    )


def _delay(router: Namespace, one_way_s: float, processes: list[subprocess.Popen[Any]]) -> None:
    program = Path(__file__).with_name("delay_line.py")
    process = subprocess.Popen(
        router.command([sys.executable, str(program), "tun0", str(one_way_s)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    processes.append(process)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise LabError("the delay line did not start; is there /dev/net/tun?")
    router.run("ip", "link", "set", "tun0", "up", "txqueuelen", "10000")
    router.run("ip", "route", "add", "default", "dev", "tun0", "table", str(_DELAYED))
