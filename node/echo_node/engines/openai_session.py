"""A server as an engine uses it: versions under fresh names, and answers that survive its restarts.

An answer is a function of its job, so a request that the server lost is simply made again; and a
version that the server lost, with a restart, is loaded again. Only when the server stays away is
the work given up.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from echo_node.engines.base import Completion, Job
from echo_node.engines.openai_client import Client, ServerGoneError, ServerRefusedError
from echo_node.engines.openai_probe import COMPLETIONS, Abilities, probe
from echo_node.engines.openai_wire import (
    Transcript,
    read_answer,
    request_for,
    score_request,
    scores_in,
)
from echo_p2p.errors import EngineError

_CONTROL_S = 120.0
_UNLOAD_S = 5.0
_LOST_S = 1200.0  # a request may wait long in a server's queue, but not for ever
_BYTES_PER_TOKEN = 2048
_STREAM_INTERVAL = 16  # tokens in one event, where the server can
_NOT_FOUND = 404

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass
class Version:
    """A version on the server; its name changes when the server has lost it."""

    folder: Path
    name: str
    loading: anyio.Lock = field(default_factory=anyio.Lock)


class Session:
    """One server that was probed. All methods are of one event loop.

    Args:
        owner: begins the names of all adapters of this node.
        away_s: how long the server may be away before work is given up.
        heard: told how many tokens have come.
    """

    def __init__(
        self,
        client: Client,
        can: Abilities,
        *,
        owner: str,
        vocab_size: int,
        max_sequences: int,
        away_s: float,
        heard: Callable[[int], None],
    ) -> None:
        self.room = anyio.CapacityLimiter(max_sequences)
        self.can = can
        self._client = client
        self._owner = owner
        self._vocab_size = vocab_size
        self._away_s = away_s
        self._heard = heard
        self._names = 0

    async def load(self, folder: Path) -> Version:
        """Load an adapter; EngineError if the server does not take it."""
        version = Version(folder, self._fresh_name())
        await patiently(partial(self._load, version), self._away_s)
        return version

    def _fresh_name(self) -> str:
        """One that was never used: under an old one a server may have old keys and values."""
        self._names += 1
        return f"{self._owner}-{time.time_ns():x}-{self._names}"

    async def _load(self, version: Version) -> None:
        body = {"lora_name": version.name, "lora_path": str(version.folder)}
        try:
            await self._client.post(self.can.load_route, body, deadline_s=_CONTROL_S)
        except ServerRefusedError as error:
            raise EngineError(
                f"the server did not take the adapter in {version.folder}: {error.message}",
                fix="It must see that folder under the same path, and allow the adapter's rank.",
            ) from error

    async def unload(self, name: str) -> None:
        """Unload an adapter. One that stays takes memory there, and does no other harm."""
        try:
            await self._client.post(
                self.can.unload_route, {"lora_name": name}, deadline_s=_UNLOAD_S
            )
        except EngineError as error:
            log.warning("%s stays on the server: %s", name, error.message)

    async def unload_leftovers(self) -> None:
        """Unload what a killed process of this node has left."""
        for name in self.can.adapters:
            if name.startswith(f"{self._owner}-"):
                await self.unload(name)

    async def score(self, version: Version, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all tokens but the first."""
        return await patiently(partial(self._score, version, tokens), self._away_s)

    async def _score(self, version: Version, tokens: Sequence[int]) -> list[float]:
        name = version.name
        try:
            raw = await self._client.post(
                COMPLETIONS, score_request(tokens, model=name), deadline_s=_CONTROL_S
            )
        except ServerRefusedError as error:
            raise await self._what_now(error, version, name) from error
        return scores_in(read_answer(raw), len(tokens))

    async def answer(self, version: Version, job: Job) -> Completion:
        """Answer a job, when there is room for it."""
        async with self.room:
            return await patiently(partial(self._answer, version, job), self._away_s)

    async def _answer(self, version: Version, job: Job) -> Completion:
        limit = min(job.sampling.max_new_tokens, self.can.context - len(job.prompt))
        name = version.name
        body = request_for(
            job, model=name, limit=limit, stream=True, stream_interval=_STREAM_INTERVAL
        )
        transcript = Transcript(job, limit=limit, vocab_size=self._vocab_size)
        events = self._client.stream(
            COMPLETIONS,
            body,
            silence_s=_LOST_S,
            most=_BYTES_PER_TOKEN * (limit + len(job.prompt)) + (1 << 16),
        )
        try:
            async for event in events:
                self._heard(transcript.take(read_answer(event)))
        except ServerRefusedError as error:
            raise await self._what_now(error, version, name) from error
        return transcript.completion

    async def _what_now(self, error: EngineError, version: Version, name: str) -> EngineError:
        """The server refused a request under this name: the error to go on with.

        One that was started anew has forgotten its versions. The first to notice loads it again.
        """
        if not isinstance(error, ServerRefusedError) or error.status != _NOT_FOUND:
            return error
        async with version.loading:
            if version.name == name:
                version.name = self._fresh_name()
                await self._load(version)
        return ServerGoneError(error.message)


async def open_session(
    client: Client,
    *,
    base: Path,
    wanted: str,
    vocab_size: int,
    context: int,
    max_sequences: int,
    start_s: float,
    away_s: float,
    heard: Callable[[int], None],
) -> Session:
    """Probe a server, and clean up what an earlier process has left there.

    Args:
        base: the base's folder; with the machine's name it tells this node's adapters apart.
        wanted, vocab_size, context: see `probe`.
        start_s: how long the server may take to come up.
    """
    trying = partial(probe, client, wanted=wanted, vocab_size=vocab_size, context=context)
    can = await patiently(trying, start_s)
    place = f"{socket.gethostname()} {base}"
    session = Session(
        client,
        can,
        owner=f"echo-{hashlib.sha256(place.encode()).hexdigest()[:12]}",
        vocab_size=vocab_size,
        max_sequences=max_sequences,
        away_s=away_s,
        heard=heard,
    )
    await session.unload_leftovers()
    return session


async def patiently(asking: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Ask again while the server is away, at growing distances, for so long."""
    wait_s = 0.25
    until = time.monotonic() + patience_s
    while True:
        try:
            return await asking()
        except ServerGoneError:
            if time.monotonic() + wait_s > until:
                raise
        await anyio.sleep(wait_s)
        wait_s = min(2.0 * wait_s, 8.0)
