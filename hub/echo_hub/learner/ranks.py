"""The learner on several devices: one process for each, the first of which has the hub's pipe.

Rank 0 is the learner's process. It starts the other ranks (`python -m echo_hub.learner.ranks`),
hands every command on to them through pipes of their own, and compares their answers with its own.
They meet on loopback, where a store of PyTorch's listens, and nowhere else.

Promises: all ranks carry out the same commands in the same order; audits only if the base is
sharded, since else the first does them alone. If a rank ends, rank 0 ends too, at once, even in the
middle of a collective, and says which; if rank 0 ends in whatever way, the ranks read the end of
their pipes and end (`ParentPipe`). So the hub has one process to watch, as with one device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import Any

from echo_hub.config import LearnerSection, RunConfig
from echo_hub.learner.messages import Answer, Audits, Command, Failed, Start, Trained
from echo_hub.learner.process import Server
from echo_hub.learner.seats import Seat
from echo_p2p.errors import ConfigError, WireError
from echo_p2p.pipes import ParentPipe, read_frame, write_frame
from echo_p2p.wire import decode, encode

_COMMAND: Any = Command  # unions, which `type[T]` has no room for
_ANSWER: Any = Answer

_BLAME_S = 5.0  # how long a rank that broke a collective may take until its end is seen


class Leader:
    """Rank 0: carries commands out, together with the other ranks if there are any."""

    def __init__(self) -> None:
        self._server = Server()
        self._others: list[_Other] = []

    def answer(self, command: Command) -> Answer:
        """The answer for the hub."""
        if isinstance(command, Start) and self._server.seat is None:
            learner = RunConfig.model_validate_json(command.config).learner
            try:
                self._begin(learner)
            except ConfigError as error:
                return Failed(message=error.message, fix=error.fix, settings=True)
        alone = isinstance(command, Audits) and not self._server.sharded
        told = [] if alone else self._others
        body = encode(command)
        for other in told:
            other.tell(body)
        try:
            answer = self._server.answer(command)
        except RuntimeError:  # of a collective, perhaps because a rank ended: then that is said
            for other in told:
                other.wait_for_its_end(_BLAME_S)
            raise
        for other in told:
            other.compare(answer)
        return answer

    def _begin(self, learner: LearnerSection) -> None:
        if learner.devices == 1:
            if learner.sharding == "shard":
                raise ConfigError(
                    'learner.sharding = "shard" with one device: there is nothing to share with.',
                    fix="Raise learner.devices, or leave out learner.sharding.",
                )
            return
        if learner.device not in ("cpu", "cuda"):
            raise ConfigError(
                f"learner.device = {learner.device!r} with {learner.devices} devices.",
                fix='Set it to "cuda": the ranks take the cards 0, 1, ... (or to "cpu").',
            )
        self._server.seat = seat = Seat.first(learner.devices)
        self._others = [_Other(seat.beside(rank)) for rank in range(1, learner.devices)]

    def close(self) -> None:
        """End the other ranks."""
        for other in self._others:
            other.close()


class _Other:
    """Another rank, as rank 0 sees it."""

    def __init__(self, seat: Seat) -> None:
        self._rank = seat.rank
        self._closing = False
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "echo_hub.learner.ranks", *seat.as_arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._listener = threading.Thread(
            target=self._listen, name=f"rank {seat.rank}", daemon=True
        )
        self._listener.start()

    def tell(self, body: bytes) -> None:
        """Hand on an encoded command."""
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, body)
        except BrokenPipeError:
            self._end("does not read its pipe any more")

    def compare(self, ours: Answer) -> None:
        """Wait for its answer, which must be ours in all that counts."""
        theirs = self._answers.get()
        alike = type(theirs) is type(ours)
        if alike and isinstance(theirs, Trained) and isinstance(ours, Trained):
            counted = [(one.version, one.metrics.get("loss")) for one in (theirs, ours)]
            alike = counted[0] == counted[1]
        if not alike:
            self._end(f"answered {theirs}, where the first had {ours}")

    def wait_for_its_end(self, seconds: float) -> None:
        """If it ends in this time, the whole learner does (see `_listen`), and says which rank."""
        self._listener.join(seconds)

    def close(self) -> None:
        """End it."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while (body := read_frame(self._process.stdout)) is not None:
            try:
                self._answers.put(decode(body, _ANSWER))
            except WireError as error:
                self._end(f"sent {error.message}")
        if not self._closing:
            self._end(f"ended with code {self._process.wait()}")

    def _end(self, what: str) -> None:
        """End the whole learner. What waits in a collective cannot be reached by an exception."""
        print(f"rank {self._rank} of the learner {what}.", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    """Serve as one of the other ranks."""
    pipe = ParentPipe()
    server = Server()
    server.seat = Seat.from_arguments(sys.argv[1:])
    while (command := pipe.receive(_COMMAND)) is not None:
        pipe.send(server.answer(command))


if __name__ == "__main__":
    main()
