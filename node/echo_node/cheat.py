"""A node that cheats: `python -m echo_node.cheat WAY ...`. Not part of `echo-node`.

It is here so that an operator can watch a run find cheats (`echo-hub demo --cheaters N`) before
strangers try. Everything but its answers is an honest node's program; the first `--honest` answers
are honest too, as a cheat's would be that wants to earn standing. Then, each in its way:

- `edited`: one token of each answer is changed;
- `hand-written`: answers the sum that the prompt asks for, with made-up log-probabilities;
- `greedy`: takes the likeliest token each time, without the noise that the hub ordered;
- `stale`: stays at the first version it saw, and says it is at the newest;
- `reseeded`: draws with a seed of its own, as one does who looks for a luckier draw.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from echo_node.engines.base import Completion, EngineInfo, Job
from echo_node.engines.remote import RemoteEngine
from echo_node.stand_in import add_arguments, join_with, opened

WAYS = ("edited", "hand-written", "greedy", "stale", "reseeded")
_SUM = re.compile(r"(\d+)( ?)\+ ?(\d+) ?=$")


class Cheat(RemoteEngine):
    """An engine whose answers are not what was ordered, after `honest` answers that are."""

    def __init__(self, way: str, honest: int, **parts: Any) -> None:
        super().__init__(**parts)
        self._way = way
        self._honest = honest
        self._tokenizer: Any = None
        self._stuck = False

    async def load(self, base: Path, dtype: Literal["float32", "bfloat16"]) -> EngineInfo:
        if self._way == "hand-written":
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        return await super().load(base, dtype)

    async def activate(self, version: int, adapter: Path) -> None:
        if not self._stuck:
            await super().activate(version, adapter)
        self._stuck = self._way == "stale"

    async def generate(
        self,
        jobs: Sequence[Job],
        *,
        version: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> list[Completion]:
        honestly = partial(super().generate, version=self.active, finished=finished)
        if self._honest > 0:
            self._honest -= len(jobs)
            return await honestly(jobs)
        match self._way:
            case "greedy":
                cold = [replace(job.sampling, temperature=1e-3) for job in jobs]
                return await honestly(
                    [replace(job, sampling=one) for job, one in zip(jobs, cold, strict=True)]
                )
            case "reseeded":
                return await honestly([replace(job, seed=job.seed ^ 1) for job in jobs])
            case "edited":
                done = await honestly(jobs)
                return [_edited(job, one) for job, one in zip(jobs, done, strict=True)]
            case "hand-written":
                for _ in jobs if finished is not None else ():
                    finished()  # type: ignore[misc]
                return [self._by_hand(job) for job in jobs]
        return await honestly(jobs)

    def _by_hand(self, job: Job) -> Completion:
        asked = _SUM.search(self._tokenizer.decode(job.prompt, skip_special_tokens=False))
        total = int(asked[1]) + int(asked[3]) if asked else 0
        text = f" {total}" if asked and asked[2] else f">{total}"
        room = job.sampling.max_new_tokens - 1
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids[:room]
        tokens.append(job.sampling.stop[0])
        return Completion(tokens, [-0.1] * len(tokens), "stop")


def _edited(job: Job, answer: Completion) -> Completion:
    """The answer with its first token exchanged for another one that occurs in the prompt."""
    others = set(job.prompt) - {answer.tokens[0], *job.sampling.stop}
    if len(answer.tokens) < 2 or not others:
        return answer
    return replace(answer, tokens=[min(others), *answer.tokens[1:]])


def open_cheat(way: str, honest: int, **parts: Any) -> AbstractAsyncContextManager[RemoteEngine]:
    """A cheat's engine in the place of `engines.remote.open_engine`."""
    return opened(Cheat(way, honest, **parts))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m echo_node.cheat", description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--honest", type=int, default=0, help="answers to give honestly at first")
    add_arguments(parser)
    asked = parser.parse_args()
    sys.exit(join_with(partial(open_cheat, asked.way, asked.honest), asked, "cheat"))


if __name__ == "__main__":
    main()
