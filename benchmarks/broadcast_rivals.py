"""The same broadcast by others: libtorrent, shardcast, and a hub that sends to each node itself.

Each is given what helps it: everybody is running, connected where that is possible, and knows whom
to ask before the clock starts; what the hub has to do beforehand (hashing, cutting into shards) is
done. Both of the two that have parts to choose are tried in several set-ups, and the best counts.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from broadcast_settings import MIB, Setting
from broadcast_trials import Result, Trial, measure, scratch
from lab_swarm import START_S, Program
from netlab import Host, open_lab

PROGRAM = Path(__file__).with_name("broadcast_rival_program.py")
PORT = 4001
KIB = 1024
BEST_OF_REPEATS = 1  # of each set-up while the best one is looked for


@dataclass(frozen=True)
class Parties:
    """A rival's programs in the lab."""

    setting: Setting
    root: Path
    hosts: Mapping[str, Host]
    hub: Host
    nodes: Sequence[Host]

    def start(self, host: Host, role: str, *arguments: str, **environment: str) -> Program:
        folder = self.root / host.name
        folder.mkdir()
        before = ["env", *(f"{name}={value}" for name, value in environment.items())]
        command = [sys.executable, str(PROGRAM), role, str(folder), host.address]
        return Program(host, *before, *command, *arguments, stderr=subprocess.DEVNULL)

    def make(self, version: int) -> Path:
        path = self.root / f"v{version}"
        rng = random.Random(version)
        with path.open("wb") as file:
            left = self.setting.size
            while left:
                left -= file.write(rng.randbytes(min(left, MIB)))
        return path


@contextmanager
def open_parties(setting: Setting) -> Iterator[Parties]:
    links = {"hub": setting.hub}
    links |= {f"n{number}": link for number, link in enumerate(setting.nodes, 1)}
    with scratch() as root, open_lab(links, rtt_s=setting.rtt_s) as hosts:
        nodes = [hosts[name] for name in links if name != "hub"]
        yield Parties(setting, root, hosts, hosts["hub"], nodes)


def trial(
    parties: Parties, programs: Sequence[Program], version: int, begin: Callable[[], float]
) -> Trial:
    """One broadcast; `programs` begins with the hub's. `begin` starts it and says when."""
    before = sum(program.ask("report")["cpu_s"] for program in programs)
    sent = parties.hub.traffic()[1]
    began = begin()
    deadline = began + 60 + 40 * parties.setting.bound_s
    done = [node.next(deadline, complete=None, version=version)["at"] for node in programs[1:]]
    sent = parties.hub.traffic()[1] - sent
    cpu_s = sum(program.ask("report")["cpu_s"] for program in programs) - before
    received = len(programs[1:]) * parties.setting.size
    return Trial(max(done) - began, sent, from_peers=max(0.0, 1 - sent / received), cpu_s=cpu_s)


# --- libtorrent -----------------------------------------------------------------------------------

TORRENTS: dict[str, dict[str, Any]] = {
    "libtorrent, as it comes": {"piece_kib": 1024, "tuned": False, "super": False},
    "libtorrent, tuned": {"piece_kib": 256, "tuned": True, "super": False},
    "libtorrent, tuned, super-seeding": {"piece_kib": 256, "tuned": True, "super": True},
}


def torrents(setting: Setting, repeats: int, options: Mapping[str, Any]) -> list[Trial]:
    with open_parties(setting) as parties:
        hosts = [parties.hub, *parties.nodes]
        programs = [parties.start(host, "torrent") for host in hosts]
        return [_torrent(parties, programs, version, options) for version in range(1, repeats + 1)]


def _torrent(
    parties: Parties, programs: list[Program], version: int, options: Mapping[str, Any]
) -> Trial:
    path = parties.make(version)
    described = _describe(path, options["piece_kib"])
    hub, *nodes = programs
    for program in programs:
        folder = parties.root if program is hub else parties.root / program.host.name
        program.ask(
            "add",
            torrent=str(described),
            folder=str(folder),
            version=version,
            seed=program is hub,
            tuned=options["tuned"],
            super=options["super"],
        )
    for number, node in enumerate(nodes):
        node.ask("connect", peers=[other.host.address for other in nodes[:number]])
    time.sleep(1)  # until they are connected

    def begin() -> float:
        now = time.monotonic()
        hub.order("connect", peers=[node.host.address for node in nodes])
        return now

    return trial(parties, programs, version, begin)


def _describe(path: Path, piece_kib: int) -> Path:
    import libtorrent as lt

    files = lt.file_storage()
    lt.add_files(files, str(path))
    made = lt.create_torrent(files, piece_size=piece_kib * KIB)
    lt.set_piece_hashes(made, str(path.parent))
    described = path.with_suffix(".torrent")
    described.write_bytes(lt.bencode(made.generate()))
    return described


# --- shardcast ------------------------------------------------------------------------------------

SHARDCASTS: dict[str, dict[str, Any]] = {
    "shardcast, 1 middle node, 2 downloads": {"middles": 1, "downloads": 2},
    "shardcast, 1 middle node, 10 downloads": {"middles": 1, "downloads": 10},
    "shardcast, 2 middle nodes, 2 downloads": {"middles": 2, "downloads": 2},
}
SHARD_BYTES = 2 * MIB
# its defaults are shards of 50 MB, and 2 and 15 s between tries
SHARDCAST_ENVIRONMENT = {
    "SHARDCAST_FAST_RETRY_INTERVAL": "1",
    "SHARDCAST_SLOW_RETRY_INTERVAL": "1",
    "SHARDCAST_LOG_LEVEL": "CRITICAL",
}


def shardcasts(setting: Setting, repeats: int, options: Mapping[str, Any]) -> list[Trial]:
    with open_parties(setting) as parties:
        hub, *nodes = _shardcast_parties(parties, options["middles"], options["downloads"])

        def begin(version: int) -> float:
            hub.order("publish", file=str(parties.make(version)), shard_bytes=SHARD_BYTES)
            said = hub.next(time.monotonic() + START_S, done="publish")
            for node in nodes:
                node.order("fetch", name=said["name"], version=version)
            return float(said["published_at"])

        return [
            trial(parties, [hub, *nodes], version, lambda: begin(version))  # noqa: B023
            for version in range(1, repeats + 1)
        ]


def _shardcast_parties(parties: Parties, middles: int, downloads: int) -> list[Program]:
    """The origin, middle nodes that fetch from it, and clients that fetch from those."""
    package = importlib.util.find_spec("shardcast")
    assert package is not None
    assert package.origin is not None
    programs: list[Program] = []
    at_hub = f"http://{parties.hub.address}:{PORT}"
    at_middles = [f"http://{host.address}:{PORT}" for host in parties.nodes[:middles]]
    for number, host in enumerate([parties.hub, *parties.nodes]):
        # it keeps a file beside its own code, so each process has a copy of that
        library = parties.root / f"{host.name}-library"
        shutil.copytree(Path(package.origin).parent, library / "shardcast")
        role = "origin" if number == 0 else "middle" if number <= middles else "client"
        upstream = at_hub if role == "middle" else at_middles[number % middles]
        program = parties.start(
            host,
            role,
            *([] if role == "origin" else [upstream]),
            PYTHONPATH=f"{library}:{os.environ.get('PYTHONPATH', '')}",
            SHARDCAST_MAX_CONCURRENT_DOWNLOADS=str(downloads),
            **SHARDCAST_ENVIRONMENT,
        )
        program.next(time.monotonic() + START_S, ready=True)
        programs.append(program)
    return programs


# --- one to many ----------------------------------------------------------------------------------


def plain_http(setting: Setting, repeats: int) -> list[Trial]:
    with open_parties(setting) as parties:
        hub = parties.start(parties.hub, "server")
        upstream = f"http://{parties.hub.address}:{PORT}"
        nodes = [parties.start(host, "getter", upstream) for host in parties.nodes]
        for program in (hub, *nodes):
            program.next(time.monotonic() + START_S, ready=True)

        def begin(version: int) -> float:
            path = parties.make(version)
            digest = blake3(path.read_bytes()).hexdigest()
            hub.ask("publish", file=str(path), version=version)
            now = time.monotonic()
            for node in nodes:
                node.order("fetch", version=version, digest=digest)
            return now

        return [
            trial(parties, [hub, *nodes], version, lambda: begin(version))  # noqa: B023
            for version in range(1, repeats + 1)
        ]


# --- all of them ----------------------------------------------------------------------------------


def measure_rivals(setting: Setting, repeats: int) -> Iterator[Result]:
    """Every rival in the best of its set-ups; LookupError if one is not installed.

    One to many is measured once: it takes as long as the hub's uplink makes it.
    """
    for package in ("libtorrent", "shardcast"):
        if importlib.util.find_spec(package) is None:
            raise LookupError(f"{package} is not installed. Run: pip install -e '.[bench]'")
    yield _best(setting, repeats, torrents, TORRENTS)
    yield _best(setting, repeats, shardcasts, SHARDCASTS)
    yield Result("plain HTTP, hub to each node", setting, plain_http(setting, 1))
    yield measure(setting, 1, alone=True)


def _best(
    setting: Setting,
    repeats: int,
    run: Callable[[Setting, int, Mapping[str, Any]], list[Trial]],
    set_ups: Mapping[str, Mapping[str, Any]],
) -> Result:
    tried = {
        name: Result(name, setting, run(setting, BEST_OF_REPEATS, options))
        for name, options in set_ups.items()
    }
    best = min(tried, key=lambda name: tried[name].typical.seconds)
    more = run(setting, repeats - BEST_OF_REPEATS, set_ups[best]) if repeats > 1 else []
    return Result(best, setting, [*tried[best].trials, *more])
