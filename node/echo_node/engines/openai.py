"""The engine that is somebody's server: vLLM serve, or any other that can do what `probe` tries.

Requests are made by a thread of its own, in structured concurrency (`openai_session`); this side
puts jobs in and takes answers out. The server must see adapters under the same paths as this node.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from echo_node.engines.adapter_config import read_config
from echo_node.engines.base import Dtype, EngineInfo, Finished, Job
from echo_node.engines.openai_client import Client
from echo_node.engines.openai_session import Session, Version, open_session
from echo_node.engines.snapshot import check_base, is_whole_model
from echo_p2p.errors import EngineError

KEY_VARIABLE = "ECHO_ENGINE_API_KEY"
"""The environment variable with the key that the server wants, if it does."""

_STEP_S = 0.25


@dataclass(frozen=True)
class Patience:
    """Seconds: for a server to come up, to come back, and to sample anything for anybody."""

    start_s: float = 120.0
    away_s: float = 60.0
    silence_s: float = 120.0


@dataclass(frozen=True, eq=False)
class _Ticket:
    """A job that was submitted: known by itself, since its number may be used again."""

    number: int


class _Connection:
    """The thread, its connections, and the session with the server."""

    def __init__(self) -> None:
        self._entered: AbstractContextManager[BlockingPortal] = start_blocking_portal("trio")
        self.portal = self._entered.__enter__()
        self.client: Client
        self.session: Session

    def close(self) -> None:
        try:
            if hasattr(self, "client"):
                self.portal.call(self.client.close)
        finally:
            self._entered.__exit__(None, None, None)


class ServerEngine:
    """See `echo_node.engines.base.Engine`.

    Args:
        url: `http://host:port`, with `#name` after it if the server has several models.
        max_sequences: most requests at once.
    """

    def __init__(self, url: str, *, max_sequences: int, patience: Patience | None = None) -> None:
        self._url, _, self._wanted = url.partition("#")
        self._max_sequences = max_sequences
        self._patience = patience or Patience()
        self._to: _Connection | None = None
        self._versions: dict[int, Version] = {}
        self._jobs: dict[int, tuple[_Ticket, Future[None]]] = {}
        self._answers: queue.SimpleQueue[tuple[_Ticket, Finished | EngineError]]
        self._answers = queue.SimpleQueue()
        self._sampled = 0
        self._heard_at = 0.0

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Find out whether the server can be used; EngineError says what it lacks.

        Which base it serves, and in which precision, is its owner's word: a hub's canary and audit
        will tell.
        """
        config = check_base(base)
        self.close()
        self._to = to = _Connection()
        key = os.environ.get(KEY_VARIABLE, "")
        try:
            to.client = to.portal.call(
                partial(Client, key=key, connections=self._max_sequences), self._url
            )
            opening = partial(
                open_session,
                base=base.resolve(),
                wanted=self._wanted,
                vocab_size=config["vocab_size"],
                context=config["max_position_embeddings"],
                max_sequences=self._max_sequences,
                start_s=self._patience.start_s,
                away_s=self._patience.away_s,
                heard=self._heard,
            )
            to.session = to.portal.call(opening, to.client)
        except BaseException:
            self.close()
            raise
        return EngineInfo(
            name="server",
            device=self._url,
            dtype=dtype,
            vocab_size=config["vocab_size"],
            max_sequences=self._max_sequences,
            context=to.session.can.context,
        )

    def _heard(self, tokens: int) -> None:
        self._sampled += tokens
        self._heard_at = time.monotonic()

    @property
    def _connected(self) -> _Connection:
        if self._to is None:
            raise EngineError("no base model is loaded.")
        return self._to

    # --- versions -----------------------------------------------------------------------------

    def add(self, version: int, folder: Path) -> None:
        """Make a version available; on EngineError all is as before."""
        if is_whole_model(folder):
            raise EngineError(
                "a server cannot take versions that are whole models.",
                fix="This run needs `--engine torch`.",
            )
        read_config(folder)
        to = self._connected
        self._versions[version] = to.portal.call(to.session.load, folder.resolve())

    def remove(self, version: int) -> None:
        """Forget a version, of which no job runs."""
        to = self._connected
        to.portal.call(to.session.unload, self._versions.pop(version).name)

    def score(self, version: int, tokens: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, given those before it."""
        to = self._connected
        return to.portal.call(to.session.score, self._versions[version], list(tokens))

    # --- jobs ---------------------------------------------------------------------------------

    def submit(self, number: int, version: int, job: Job) -> None:
        """Take a job of a version that was added."""
        if not self._jobs:
            self._heard_at = time.monotonic()
        to, ticket = self._connected, _Ticket(number)
        future = to.portal.start_task_soon(
            self._answer, to.session, ticket, self._versions[version], job
        )
        future.add_done_callback(partial(self._check, ticket))
        self._jobs[number] = ticket, future

    def _check(self, ticket: _Ticket, future: Future[None]) -> None:
        """A mistake of ours must not look like an answer that takes long."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            words = f"{type(error).__name__}: {error}"
            self._answers.put((ticket, EngineError(f"a request failed: {words}")))

    async def _answer(self, session: Session, ticket: _Ticket, version: Version, job: Job) -> None:
        try:
            completion = await session.answer(version, job)
        except EngineError as error:
            self._answers.put((ticket, error))
        else:
            self._answers.put((ticket, Finished(ticket.number, completion)))

    def step(self) -> list[Finished]:
        """Wait a moment for answers; the jobs that are done.

        EngineError: the server failed a job, or stays away, or says nothing; all jobs are lost.
        """
        finished: list[Finished] = []
        until = time.monotonic() + _STEP_S
        while self._jobs:
            wait_s = 0.0 if finished else until - time.monotonic()
            try:
                ticket, answer = self._answers.get(wait_s > 0, max(0.0, wait_s))
            except queue.Empty:
                break
            if self._jobs.get(ticket.number, (None,))[0] is not ticket:
                continue  # it was dropped
            del self._jobs[ticket.number]
            if isinstance(answer, EngineError):
                self._fail(answer)
            else:
                finished.append(answer)
        silent_s = time.monotonic() - self._heard_at
        if self._jobs and not finished and silent_s > self._patience.silence_s:
            self._fail(EngineError(f"the server has sampled nothing for {silent_s:.0f} s."))
        return finished

    def _fail(self, error: EngineError) -> None:
        self.drop(list(self._jobs))
        raise error

    @property
    def running(self) -> int:
        """Jobs that were submitted, and neither finished nor dropped."""
        return len(self._jobs)

    @property
    def sampled(self) -> int:
        """Tokens that came from the server; never falls."""
        return self._sampled

    def resize(self, max_sequences: int) -> None:
        """Answer at most so many jobs at once from now on."""
        to = self._connected
        most = max(1, min(max_sequences, self._max_sequences))
        to.portal.call(partial(setattr, to.session.room, "total_tokens", most))

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, those of them that are running; their requests are broken off."""
        for number in numbers:
            if number in self._jobs:
                self._jobs.pop(number)[1].cancel()

    def close(self) -> None:
        """Break off what runs, unload what was loaded, and end the thread."""
        self.drop(list(self._jobs))
        to, self._to = self._to, None
        versions, self._versions = self._versions, {}
        if to is not None:
            try:
                for version in versions.values():
                    to.portal.call(to.session.unload, version.name)
            finally:
                to.close()
