"""One party of a rival for `broadcast_rivals.py`, as a process that takes and says JSON lines.

    broadcast_rival_program.py ROLE FOLDER ADDRESS [UPSTREAM,...]

Roles: torrent; origin, middle, client (of shardcast); server, getter (plain HTTP).
"""

from __future__ import annotations

import http.server
import json
import os
import resource
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

PORT = 4001
POLL_S = 0.01


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def orders() -> Iterator[dict[str, Any]]:
    """Orders that are not for `report`, which is answered here."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] != "report":
            yield order
            continue
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        say(done="report", cpu_s=sum(one.ru_utime + one.ru_stime for one in used))


def complete(path: Path, version: int) -> None:
    say(complete=str(path), version=version, at=time.monotonic())


# --- libtorrent -----------------------------------------------------------------------------------

QUIET = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "alert_mask": 0,
}
TUNED = {
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "unchoke_slots_limit": -1,
    "connections_limit": 500,
    "connection_speed": 500,
    "torrent_connect_boost": 100,
    "max_out_request_queue": 2000,
    "send_buffer_watermark": 4 << 20,
    "seed_choking_algorithm": 1,
}


def torrent(folder: Path, address: str) -> None:
    import libtorrent as lt

    session: Any = None
    handle: Any = None

    def wait(version: int) -> None:
        while not handle.status().is_seeding:
            time.sleep(POLL_S)
        complete(folder / f"v{version}", version)

    for order in orders():
        if order["do"] == "add":
            if session is None:
                tuning = TUNED if order["tuned"] else {}
                session = lt.session({"listen_interfaces": f"{address}:{PORT}"} | QUIET | tuning)
            params = lt.add_torrent_params()
            params.ti = lt.torrent_info(order["torrent"])
            params.save_path = order["folder"]
            params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
            if order["seed"]:
                params.flags |= lt.torrent_flags.seed_mode | lt.torrent_flags.paused
            if order["super"] and order["seed"]:
                params.flags |= lt.torrent_flags.super_seeding
            handle = session.add_torrent(params)
            if not order["seed"]:
                threading.Thread(target=wait, args=[order["version"]], daemon=True).start()
        elif order["do"] == "connect":
            handle.resume()
            for peer in order["peers"]:
                handle.connect_peer((peer, PORT))
        say(done=order["do"], peers=handle.status().num_peers)


# --- shardcast: an origin, middle nodes that serve what they fetch, clients -----------------------


def origin(folder: Path, address: str) -> None:
    from shardcast import OriginServer

    served = folder / "served"
    made = OriginServer(str(served), PORT, max_distribution_folders=2)
    (served / "data1.bin").write_bytes(bytes(1 << 20))  # what others measure its speed by
    say(ready=True)
    for order in orders():
        name = made.broadcast(order["file"], order["shard_bytes"])
        say(done=order["do"], name=name, published_at=time.monotonic())


def middle(folder: Path, address: str, upstream: str) -> None:
    from shardcast import MiddleNode

    served = folder / "served"
    made = MiddleNode(upstream.split(","), str(served), PORT, check_interval=POLL_S)
    (served / "data1.bin").write_bytes(bytes(1 << 20))
    say(ready=True)
    for order in orders():
        while order["name"] not in made.processed_versions:
            time.sleep(POLL_S)
        complete(served / order["name"], order["version"])


def client(folder: Path, address: str, upstream: str) -> None:
    from shardcast import ClientNode

    made = ClientNode(upstream.split(","), str(folder / "fetched"))
    say(ready=True)
    for order in orders():
        while (path := made.download_version(order["name"])) is None:
            time.sleep(POLL_S)
        complete(Path(path), order["version"])


# --- plain HTTP: the hub to each node -------------------------------------------------------------


def server(folder: Path, address: str) -> None:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    http.server.SimpleHTTPRequestHandler.log_message = lambda *_: None
    made = http.server.ThreadingHTTPServer((address, PORT), handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    say(ready=True)
    for order in orders():
        os.link(order["file"], folder / f"v{order['version']}")
        say(done=order["do"])


def getter(folder: Path, address: str, upstream: str) -> None:
    say(ready=True)
    for order in orders():
        path, digest = folder / f"v{order['version']}", blake3()
        with (
            urllib.request.urlopen(f"{upstream}/v{order['version']}") as reply,
            path.open("wb") as file,
        ):
            while data := reply.read(1 << 20):
                digest.update(data)
                file.write(data)
        if digest.hexdigest() == order["digest"]:
            complete(path, order["version"])


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "torrent": torrent,
        "origin": origin,
        "middle": middle,
        "client": client,
        "server": server,
        "getter": getter,
    }
    roles[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
