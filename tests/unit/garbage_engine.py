"""An engine's process that says what none says. $GARBAGE is a file with what each process after the
other does wrong, one a line; when none is left, the process answers as it should."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from echo_node.engines.base import Completion, EngineInfo
from echo_node.engines.messages import (
    Activate,
    Activated,
    Command,
    Done,
    Failed,
    Load,
    Loaded,
    Lost,
    Submit,
)
from echo_node.engines.process import DEVICE_LOST
from echo_p2p.pipes import ParentPipe

INFO = EngineInfo("garbage", "none", "float32", vocab_size=61, max_sequences=8, context=96)


def completion(garbage: str, length: int) -> Completion:
    match garbage:
        case "tokens":
            return Completion([10**6] * length, [-1.0] * length, "length")
        case "numbers":
            return Completion([5] * length, [float("nan")] * length, "length")
        case "length":
            return Completion([5] * (length + 1), [-1.0] * (length + 1), "length")
        case _:
            return Completion([5] * length, [-1.0] * length, "length")


def main() -> None:
    pipe, plan = ParentPipe(), Path(os.environ["GARBAGE"])
    garbage, *left = plan.read_text().splitlines() or [""]
    plan.write_text("\n".join(left))
    active = 0
    while (command := pipe.receive(Command)) is not None:  # type: ignore[arg-type]
        match command:
            case Load() if garbage == "no card":
                pipe.send(Failed(message="RuntimeError: No CUDA GPUs are available"))
            case Load():
                resources = command.resources
                info = replace(INFO, device=resources.device, context=resources.context)
                pipe.send(Loaded(info=info))
            case Activate():
                active = command.version
                pipe.send(Activated(version=active))
            case Submit():
                if garbage == "bytes":
                    pipe._out.write(b"\x00\x00\x00\x02\xc1\xc1")
                    pipe._out.flush()
                if garbage == "card":  # as `echo_node.engines.process` does when a driver is reset
                    pipe.send(Lost(message="CUDA error: unspecified launch failure", device=True))
                    raise SystemExit(DEVICE_LOST)
                if garbage == "unasked":
                    pipe.send(Activated(version=7))
                for order in command.orders:
                    asked = active if order.version is None else order.version
                    version = asked + 1 if garbage == "version" else asked
                    answer = completion(garbage, order.job.sampling.max_new_tokens)
                    pipe.send(Done(number=order.number, version=version, completion=answer))


if __name__ == "__main__":
    main()
