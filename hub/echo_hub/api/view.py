"""What the API sees of a hub: its live state, and its ledger, read on a connection of its own.

Promises: nothing here changes the run. Reads of the ledger happen in a few threads, on connections
that cannot write; live state is asked in the hub's own task and takes no time that grows with the
number of nodes.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import trio
from sqlalchemy import Connection

from echo_hub.activating import ActivationNow
from echo_hub.api.errors import missing
from echo_hub.config import RunConfig
from echo_hub.control.actions import Any as AnyAction
from echo_hub.ledger.schema import database_errors, open_engine
from echo_hub.loop import LearnerNow
from echo_hub.paths import RunFolder
from echo_hub.publish.spread import Spread
from echo_hub.rollouts.front import Front
from echo_hub.run_facts import resolve_base
from echo_hub.tally import FrontSnapshot
from echo_hub.tasks.base import Split
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import IdentityError
from echo_p2p.identity import peer_id_of, public_key_of

if TYPE_CHECKING:
    from echo_hub.endpoints import Greeted
    from echo_hub.service import Hub

P = ParamSpec("P")
R = TypeVar("R")

Prompts = Callable[[Split, Sequence[int]], Awaitable[list[list[int] | str]]]
"""Token ids of prompts; a sentence in place of one that cannot be made."""

_READERS = 2
SAMPLE_S = 1.0
SPAN_S = 300.0
_SAMPLES = round(SPAN_S / SAMPLE_S) + 1


@lru_cache(maxsize=20_000)
def peer_id(key: bytes) -> str:
    """The peer id of a key; computing it takes a while, and a page shows many."""
    return peer_id_of(key)


def key_of(node: str) -> bytes:
    """The key of a peer id; 404 if it is none."""
    try:
        return public_key_of(node)
    except IdentityError as error:
        raise missing(f"node {node}: {error.message}") from error


def keys_in_session(view: View) -> set[bytes]:
    """Keys of the nodes in session. A peer whose id holds no key is no node, whatever it opened."""
    return {key for node in view.in_session() if (key := _key(node)) is not None}


@lru_cache(maxsize=20_000)
def _key(node: str) -> bytes | None:
    try:
        return public_key_of(node)
    except IdentityError:
        return None


class Reader:
    """Reads a ledger in threads. Close it when nobody asks any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = open_engine(path, read_only=True)
        self._limiter = trio.CapacityLimiter(_READERS)

    async def read(
        self,
        look: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """What `look` finds, within one transaction."""

        def work() -> R:
            with database_errors(self._path), self._engine.connect() as connection:
                return look(connection, *args, **kwargs)

        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    def close(self) -> None:
        """Drop its connections."""
        self._engine.dispose()


@dataclass(frozen=True)
class Recent:
    """Rollouts that were judged of late, over `seconds`."""

    seconds: float = 0.0
    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return max(0, self.accepted) / self.seconds if self.seconds else 0.0

    @property
    def share_rejected(self) -> float:
        total = self.accepted + sum(self.rejected.values())
        return sum(self.rejected.values()) / total if total > 0 else 0.0


class Samples:
    """Counts of rollouts over the last minutes. Pure."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, dict[str, int]]] = deque(maxlen=_SAMPLES)

    def add(self, now: float, accepted: int, rejected: dict[str, int]) -> None:
        """The counts at this moment."""
        self._samples.append((now, accepted, rejected))

    def over(self, seconds: float) -> Recent:
        """What was added within the last seconds, as far back as is known."""
        if len(self._samples) < 2:
            return Recent()
        last = self._samples[-1]
        first = next(one for one in self._samples if one[0] >= last[0] - seconds)
        if first is last:
            return Recent()
        grown = {code: n - first[2].get(code, 0) for code, n in last[2].items()}
        return Recent(
            seconds=last[0] - first[0],
            accepted=max(0, last[1] - first[1]),
            rejected={code: n for code, n in grown.items() if n > 0},
        )


@dataclass
class View:
    """A hub as the API sees it. `clock` tells Unix seconds."""

    config: RunConfig
    folder: RunFolder
    peer_id: str
    addresses: Callable[[], Sequence[str]]
    front: Front
    learner: Callable[[], LearnerNow]
    spreads: Callable[[], list[Spread]]
    in_session: Callable[[], Collection[str]]
    greeted: Callable[[str], Greeted | None]
    do: Callable[[AnyAction], Awaitable[str]]
    reader: Reader
    prompts: Prompts
    activation: Callable[[], ActivationNow | None] = lambda: None
    clock: Callable[[], float] = time.time
    samples: Samples = field(default_factory=Samples)
    _tokenizer: Tokenizer | None = None

    def disk_free(self) -> int:
        """Bytes that are free where the run's folder is. Asks the disk: for a thread."""
        return shutil.disk_usage(self.folder.root).free

    def snapshot(self) -> FrontSnapshot:
        """Where the front stands, without its nodes."""
        return self.front.snapshot(nodes=False)

    async def sample(self) -> None:
        """Count rollouts each second, until cancelled."""
        while True:
            now = self.snapshot()
            self.samples.add(trio.current_time(), now.rollouts_accepted, now.rollouts_rejected)
            await trio.sleep(SAMPLE_S)

    async def prompt_text(self, split: Split, index: int) -> str:
        """A prompt as the policy is asked it; empty if it can be made no more."""
        (made,) = await self.prompts(split, [index])
        return "" if isinstance(made, str) else (await self.tokenizer()).text(made)

    async def tokenizer(self) -> Tokenizer:
        """The base model's, loaded when it is first asked for."""
        if self._tokenizer is None:
            base = resolve_base(self.config.base.path)
            self._tokenizer = await trio.to_thread.run_sync(Tokenizer.load, base)
        return self._tokenizer


def view_of(hub: Hub, folder: RunFolder) -> View:
    """The view of a hub that is open."""
    from echo_hub.service import announced

    return View(
        config=hub.config,
        folder=folder,
        peer_id=hub.peer.peer_id,
        addresses=lambda: announced(hub.config, hub.peer),
        front=hub.front,
        learner=hub.loop.now,
        spreads=hub.dissemination.spreads.all,
        in_session=lambda: hub.endpoints.in_session,
        greeted=hub.endpoints.greeted,
        do=hub.controls.do,
        reader=Reader(folder.ledger),
        prompts=hub.scorers.prompts,
        activation=hub.activating.now,
    )
