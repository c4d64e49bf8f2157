"""What the browser's tests stand on: a hub that is really served, a crowd in its ledger, a browser.

The hub, its learner and its node are processes as an operator starts them. The crowd are nodes that
the ledger remembers; nothing else of a run of thousands can be had on two cores.
"""

from __future__ import annotations

import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio
from playwright.sync_api import Browser, Playwright

from echo_hub.audit.sequential import NodeEvidence
from echo_hub.ledger import rows
from echo_hub.ledger.ledger import Ledger, beside
from echo_hub.ledger.schema import nodes
from echo_hub.rollouts.reputation import Record
from echo_p2p.identity import Identity

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from programs import Program, Stage

CROWD = 9_999
_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def chromium_path() -> str | None:
    """Debian's Chromium, or another that is on the path."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def start_browser(playwright: Playwright) -> Browser:
    """A browser with a new profile."""
    return playwright.chromium.launch(
        executable_path=chromium_path(), headless=True, args=_FLAGS.split()
    )


def peer_id_of(node: Program) -> str:
    """Who it is, once it has joined."""
    return str(node.wait_for(lambda event: event["event"] == "joined")["node"])


class ServedHub:
    """A run that is served with its dashboard, and one node, for the tests of a whole session."""

    def __init__(self, root: Path, *, crowd: int = 0, **overrides: dict[str, Any]) -> None:
        self.stage = Stage(root)
        self.stage.init(_free_port(), **(_SMALL | overrides))
        if crowd:
            trio.run(_fill, self.stage.run / "ledger.sqlite", crowd)
        self.hub: Program = self.stage.hub()
        self.node: Program | None = None

    @property
    def url(self) -> str:
        serving = self.hub.wait_for(lambda event: event["event"] == "serving")
        return str(serving["dashboard"])

    def join(self) -> Program:
        """A node joins."""
        self.node = self.stage.node(0)
        return self.node

    def cheat(self) -> Program:
        """A node joins that changes a token of each answer."""
        return self.stage.cheat(1, "edited")

    @property
    def peer_id(self) -> str:
        """Of the node."""
        assert self.node is not None
        return peer_id_of(self.node)

    def wait_for_version(self, version: int) -> None:
        """The learner has made this version."""
        self.hub.wait_for(lambda one: one["event"] == "update" and one["version"] >= version)

    def close(self) -> None:
        self.stage.close()


_SMALL: dict[str, dict[str, Any]] = {
    "run": {"updates": 100_000},
    "learner": {"groups_per_update": 8, "keep_checkpoints": 50},
    "sampling": {"group_size": 4},
    "evaluation": {"prompts": 16, "every": 4},
    "network": {"directory": False},
    "audit": {"ban": False},  # that is for the operator
    "dashboard": {"port": 0, "public": True},
}


async def _fill(path: Path, count: int) -> None:
    """A new ledger with nodes that it remembers."""
    async with Ledger.open(path, "e2e"):
        pass
    rng, now = random.Random(7), time.time()
    crowd = [Identity.create().public_key for _ in range(count)]
    with beside(path, read_only=False) as connection:
        connection.execute(
            nodes.insert(),
            [
                {"key": key, "first_seen": now - 9e5, "last_seen": now - rng.random() * 8e5}
                for key in crowd
            ],
        )
        verdicts = [(key, "accepted", 1, rng.randrange(1, 40)) for key in crowd]
        for key in crowd[::3]:
            code = rng.choice(["stale", "expired_lease", "audit_margin"])
            verdicts.append((key, code, 1, rng.randrange(1, 500)))
        rows.count_verdicts(connection, verdicts)
        records = [
            (key, Record(rng.random() * 900, now, None if at % 97 else "a test.", NodeEvidence()))
            for at, key in enumerate(crowd[::2])
        ]
        rows.put_standings(connection, [records])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Relay:
    """Passes TCP on to a hub, until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[socket.socket] = set()
        self._passes = True
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """As if the cable were pulled: what is open ends, and nothing new gets through."""
        self._passes = False
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """The cable is in again."""
        self._passes = True

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if not self._passes:
                    client.close()
                    continue
                hub = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((client, hub), (hub, client)):
                    self._open.add(source)
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()


@contextmanager
def relay_to(url: str) -> Iterator[Relay]:
    """A relay in front of a hub's dashboard."""
    relay = Relay(int(url.rpartition(":")[2]))
    try:
        yield relay
    finally:
        relay.close()
