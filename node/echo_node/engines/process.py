"""The engine's process: `python -m echo_node.engines.process`, spoken to over its pipes.

Promises: one answer to each command, in order; an engine's error is answered, not died of; it never
reaches for a model hub, whatever a snapshot asks for; it ends when its parent does.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from echo_node.engines.base import Engine
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

log = logging.getLogger(__name__)


def main() -> None:
    pipe = ParentPipe()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    engine: Engine | None = None
    while (command := _next(pipe)) is not None:
        try:
            if isinstance(command, Load):
                engine = _make_engine(command)
            answer = _carry_out(engine, command)
        except EchoError as error:
            answer = Failed(message=str(error))
        except Exception as error:
            log.exception("%s failed", type(command).__name__)
            answer = Failed(message=f"{type(error).__name__}: {error}")
        pipe.send(answer)


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


def _carry_out(engine: Engine | None, command: Command) -> Answer:
    if engine is None:
        return Failed(message="the first command must be Load.")
    match command:
        case Load():
            return Loaded(info=engine.load(Path(command.base), command.dtype))
        case Activate():
            engine.activate(command.version, Path(command.adapter))
            return Activated(version=command.version)
        case Generate():
            return Generated(completions=engine.generate(command.jobs))


if __name__ == "__main__":
    main()
