"""The process between the hub and a Ray cluster: hands jobs to places there, and answers back.

Ray is imported here and nowhere else in the hub; the hub kills this process when it wants no more
of it. Promises: every `Ask` is answered once, by a `Told` or by a `Lost`; a place that is lost,
with its machine or without, is made anew wherever Ray finds room. Run by `ray_pool`.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import msgspec

from echo_hub.scoring.process import ANSWERS, Answer, Command, Failed, Ready, Setup
from echo_hub.scoring.ray_place import Place, ScorerLostError
from echo_p2p.errors import WireError
from echo_p2p.pipes import ParentPipe
from echo_p2p.wire import decode, encode

_START_S = 300.0
_MARGIN_S = 30.0  # the place itself keeps the deadline; this is for one that is gone


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class Connect(_Frame, frozen=True):
    """First message. `address`: of the cluster; `files`: the tokenizer's, by name."""

    address: str
    places: int
    setup: Setup
    files: dict[str, bytes]
    environment: list[str]


class Connected(_Frame, frozen=True):
    """There are places; `ready` is what the first scorer said."""

    ready: Ready


class Unconnected(_Frame, frozen=True):
    """There are none; `task` says that the task is to blame and not the cluster."""

    message: str
    task: bool


class Ask(_Frame, frozen=True):
    job: int
    command: Command
    deadline_s: float


class Told(_Frame, frozen=True):
    job: int
    answer: Answer


class Lost(_Frame, frozen=True):
    """A job came to no answer. `cluster`: not for its own sake, its machine or process is gone."""

    job: int
    message: str
    cluster: bool


ToHub = Connected | Unconnected | Told | Lost
TO_HUB: Any = ToHub
_ASK: Any = Ask


class _Bridge:
    def __init__(self, ray: Any, connect: Connect, pipe: ParentPipe) -> None:
        self._ray = ray
        self._actor = ray.remote(max_restarts=0, num_cpus=1)(Place)
        self._made_with = (encode(connect.setup), connect.files, connect.environment)
        self._pipe = pipe
        self._places: dict[int, Any] = {}
        self._sending = threading.Lock()
        self._jobs: SimpleQueue[Ask] = SimpleQueue()

    def first(self) -> tuple[Any, Answer]:
        """A first place, and what its scorer said to its setup."""
        place = self._actor.remote(*self._made_with)
        said = self._ray.get(place.start.remote(), timeout=_START_S)
        answer: Answer = decode(said, ANSWERS)
        return place, answer

    def serve(self, first: Any, places: int) -> None:
        """Hand out what the hub asks until it is gone; each place has a thread here."""
        self._places[0] = first
        for number in range(places):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()
        while (ask := self._pipe.receive(_ASK)) is not None:
            self._jobs.put(ask)
        for place in list(self._places.values()):  # or the cluster would keep them for a while
            self._ray.kill(place)
        self._ray.shutdown()

    def _work(self, number: int) -> None:
        while True:
            ask = self._jobs.get()
            if number not in self._places:
                self._places[number] = self._actor.remote(*self._made_with)
            message, gone = self._do(self._places[number], ask)
            if gone:
                self._ray.kill(self._places.pop(number))
            with self._sending:
                self._pipe.send(message)

    def _do(self, place: Any, ask: Ask) -> tuple[Told | Lost, bool]:
        """What became of a job, and whether its place is gone."""
        errors = self._ray.exceptions
        try:
            asked = place.ask.remote(encode(ask.command), ask.deadline_s)
            body = self._ray.get(asked, timeout=ask.deadline_s + _START_S + _MARGIN_S)
            return Told(job=ask.job, answer=decode(body, ANSWERS)), False
        except errors.RayTaskError as error:  # raised in the place; anything else is Ray's own
            lost = isinstance(error.cause, ScorerLostError)
            return Lost(job=ask.job, message=str(error.cause)[:2000], cluster=not lost), not lost
        except (errors.RayError, WireError, OSError) as error:
            message = f"{type(error).__name__}: {error}"[:2000]
            return Lost(job=ask.job, message=message, cluster=True), True


def _connect(pipe: ParentPipe) -> tuple[_Bridge, Any, Connect] | None:
    connect = pipe.receive(Connect)
    if connect is None:
        return None
    try:
        import ray
    except ImportError:
        pipe.send(Unconnected(message="the package ray is not installed", task=False))
        return None
    try:
        ray.init(address=connect.address, log_to_driver=False, namespace="echo-p2p")
        bridge = _Bridge(ray, connect, pipe)
        place, answer = bridge.first()
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        pipe.send(Unconnected(message=f"{type(error).__name__}: {error}"[:2000], task=False))
        return None
    if not isinstance(answer, Ready):
        message = answer.message if isinstance(answer, Failed) else "the scorer broke its protocol"
        pipe.send(Unconnected(message=message, task=True))
        return None
    pipe.send(Connected(ready=answer))
    return bridge, place, connect


def main() -> None:
    """Serve the hub until it closes the pipe."""
    pipe = ParentPipe()
    connected = _connect(pipe)
    if connected is not None:
        bridge, place, connect = connected
        bridge.serve(place, connect.places)


if __name__ == "__main__":
    main()
