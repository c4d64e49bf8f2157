"""The engine's process: `python -m echo_node.engines.process`, spoken to over its pipes.

Promises: commands are obeyed between two steps of the work, in order; an engine's error is
answered, not died of, but for memory that ran out and an accelerator that was lost (its driver was
reset, it fell off the bus): then the process says so and ends, since only a new one has all memory
back, or can speak to the device again; it never reaches for a model hub, whatever a snapshot asks
for; it ends when its parent does. Environments of multi-turn tasks run here too.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from echo_node.engines.choice import import_engine, make_engine
from echo_node.engines.driver import Driver
from echo_node.engines.duty import Duty
from echo_node.engines.messages import (
    Activate,
    Activated,
    Answer,
    Beat,
    Command,
    Done,
    Drop,
    Failed,
    Load,
    Loaded,
    Lost,
    Pace,
    Prepare,
    Refused,
    Release,
    Resize,
    Score,
    Scored,
    Submit,
)
from echo_p2p.errors import EchoError
from echo_p2p.pipes import ParentPipe
from echo_p2p.text import TurnText

BEAT_S = 1.0
OUT_OF_MEMORY = 9
"""Exit code of a process whose memory ran out."""
DEVICE_LOST = 10
"""Exit code of a process whose accelerator is lost to it."""
log = logging.getLogger(__name__)


class Texts:
    """The base's tokenizer, read when the first job with turns comes."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._read: dict[frozenset[int], TurnText] = {}

    def __call__(self, stop: Sequence[int]) -> TurnText:
        """For turns that end with these tokens; DialogueError if there is no tokenizer."""
        key = frozenset(stop)
        if key not in self._read:
            self._read[key] = TurnText.load(self._base, key)
        return self._read[key]


class Process:
    """Obeys the node's commands, and works between them."""

    def __init__(self, pipe: ParentPipe) -> None:
        self._pipe = pipe
        self._driver: Driver | None = None
        self._beat_at = 0.0
        self._duty = Duty()

    def run(self) -> None:
        """Until the node closes the pipe."""
        while True:
            at_work = self._driver is not None and self._driver.running > 0
            while not at_work or self._pipe.waiting:
                command: Command | None = self._pipe.receive(Command)  # type: ignore[arg-type]
                if command is None:
                    return
                self._obey(command)
                at_work = self._driver is not None and self._driver.running > 0
            self._work()

    def _obey(self, command: Command) -> None:
        try:
            answer = self._carry_out(command)
        except EchoError as error:
            answer = Failed(message=str(error))
        except Exception as error:
            log.exception("%s failed", type(command).__name__)
            self._end_if_beyond_help(error)
            answer = Failed(message=f"{type(error).__name__}: {error}")
        if answer is not None:
            self._pipe.send(answer)

    def _carry_out(self, command: Command) -> Answer | None:
        if isinstance(command, Prepare):
            _give_way(command.nice)
            _prepare(command.engine)
            return None
        if isinstance(command, Load):
            return self._load(command)
        if isinstance(command, Pace):
            self._duty.set(command.percent)
            return None
        if self._driver is None:
            return Failed(message="the first command must be Load.")
        match command:
            case Activate():
                self._driver.activate(command.version, Path(command.adapter))
                return Activated(version=command.version)
            case Score():
                return Scored(logprobs=self._driver.score(command.tokens))
            case Release():
                self._driver.release(command.version)
            case Submit():
                self._submit(self._driver, command)
            case Drop():
                self._driver.drop(command.numbers)
            case Resize():
                self._driver.engine.resize(command.max_sequences)
        return None

    def _load(self, command: Load) -> Loaded:
        if self._driver is not None:
            self._driver.engine.close()
            self._driver = None
        _give_way(command.nice)
        engine = make_engine(
            command.engine,
            max_sequences=command.max_sequences,
            threads=command.threads,
            resources=command.resources,
        )
        driver = Driver(engine, Texts(Path(command.base)))
        info = driver.load(Path(command.base), command.dtype)
        self._driver = driver
        return Loaded(info=info)

    def _submit(self, driver: Driver, command: Submit) -> None:
        for order in command.orders:
            try:
                driver.submit(order.number, order.job, order.version)
            except EchoError as error:
                self._pipe.send(Refused(number=order.number, message=str(error)))

    def _work(self) -> None:
        assert self._driver is not None
        began = time.monotonic()
        try:
            finished = self._driver.step()
        except Exception as error:
            log.exception("the engine failed")
            self._end_if_beyond_help(error)
            message = (
                str(error) if isinstance(error, EchoError) else f"{type(error).__name__}: {error}"
            )
            self._pipe.send(Lost(message=message))
            return
        for one in finished:
            self._pipe.send(Done(number=one.number, version=one.version, completion=one.completion))
        now = time.monotonic()
        if now >= self._beat_at + BEAT_S or not self._driver.running:
            self._beat_at = now
            beat = Beat(sampled=self._driver.engine.sampled, running=self._driver.running)
            self._pipe.send(beat)
        time.sleep(self._duty.rest_s(time.monotonic() - began))

    def _end_if_beyond_help(self, error: Exception) -> None:
        what = (str(error) or type(error).__name__).splitlines()[0]
        if is_out_of_memory(error):
            self._pipe.send(Lost(message=f"memory ran out: {what}", memory=True))
            raise SystemExit(OUT_OF_MEMORY)
        if is_device_lost(error):
            self._pipe.send(Lost(message=what, device=True))
            raise SystemExit(DEVICE_LOST)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, the host's or a device's, by what the libraries raise for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether the accelerator no longer works for this process, by what the libraries raise for it.

    An error of CUDA's or HIP's is remembered by the driver and comes again with every call; so is
    one of a Metal command buffer by its queue, and a dead core by vLLM.
    """
    if type(error).__name__ in ("AcceleratorError", "EngineDeadError"):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text
        for words in ("cuda error", "hip error", "device-side assert", "command buffer execution")
    )


def _give_way(nice: int) -> None:
    """A lower priority, for threads to come too; nobody may go back from it."""
    if nice > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def _prepare(engine: str) -> None:
    try:
        import_engine(engine)
    except Exception:  # whatever an import raises: `Load` meets it again, and says it
        log.exception("%s cannot be imported ahead of time", engine)


def main() -> None:
    pipe = ParentPipe()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    Process(pipe).run()


if __name__ == "__main__":
    main()
