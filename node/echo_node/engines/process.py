"""The engine's process: `python -m echo_node.engines.process`, spoken to over its pipes.

Promises: one answer to each command, in order; an engine's error is answered, not died of; it never
reaches for a model hub, whatever a snapshot asks for; it ends when its parent does. Environments
of multi-turn tasks run here too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from echo_node.engines.base import Engine
from echo_node.engines.dialogues import generate_dialogues
from echo_node.engines.messages import (
    Activate,
    Activated,
    Answer,
    Command,
    Failed,
    Generate,
    Generated,
    Load,
    Loaded,
)
from echo_p2p.errors import EchoError
from echo_p2p.pipes import ParentPipe
from echo_p2p.text import TurnText

log = logging.getLogger(__name__)


def main() -> None:
    pipe = ParentPipe()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    engine: Engine | None = None
    texts = Texts()
    while (command := _next(pipe)) is not None:
        try:
            if isinstance(command, Load):
                engine, texts = _make_engine(command), Texts(Path(command.base))
            answer = _carry_out(engine, texts, command)
        except EchoError as error:
            answer = Failed(message=str(error))
        except Exception as error:
            log.exception("%s failed", type(command).__name__)
            answer = Failed(message=f"{type(error).__name__}: {error}")
        pipe.send(answer)


class Texts:
    """The base's tokenizer, read when the first job with turns comes."""

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._read: dict[frozenset[int], TurnText] = {}

    def for_stop(self, stop: Sequence[int]) -> TurnText:
        """For turns that end with these tokens; DialogueError if there is no tokenizer."""
        assert self._base is not None
        key = frozenset(stop)
        if key not in self._read:
            self._read[key] = TurnText.load(self._base, key)
        return self._read[key]


def _next(pipe: ParentPipe) -> Command | None:
    command: Command | None = pipe.receive(Command)  # type: ignore[arg-type]
    return command


def _make_engine(load: Load) -> Engine:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import torch

    from echo_node.engines.torch import TorchEngine

    if load.threads:
        torch.set_num_threads(load.threads)
    return TorchEngine(max_sequences=load.max_sequences)


def _carry_out(engine: Engine | None, texts: Texts, command: Command) -> Answer:
    if engine is None:
        return Failed(message="the first command must be Load.")
    match command:
        case Load():
            return Loaded(info=engine.load(Path(command.base), command.dtype))
        case Activate():
            engine.activate(command.version, Path(command.adapter))
            return Activated(version=command.version)
        case Generate():
            done = generate_dialogues(engine.generate, texts.for_stop, command.jobs)
            return Generated(completions=done)


if __name__ == "__main__":
    main()
