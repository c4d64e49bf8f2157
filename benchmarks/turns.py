"""What keeping keys and values from turn to turn saves: prompt tokens read, and time.

    python benchmarks/turns.py

Dialogues of `guess-number` by the packaged small policy, whose answers are about 12 tokens, with a
long prompt (a worked example is put in front, as an instruction would be). The rival is the same
engine with no room to keep anything, as an engine without a prefix cache; the bound on what can be
saved is every token that was in an earlier turn's prompt or answer. Both give the same tokens.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import trio

from echo_hub.commands.presets import preset
from echo_hub.config import RunConfig
from echo_hub.learner.client import open_learner
from echo_hub.models import addmix3_path
from echo_hub.tokens import Tokenizer
from echo_node.engines.base import Completion, Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import KEPT_BYTES, TorchEngine
from echo_p2p.text import TurnText
from echo_p2p.wire import Sampling, Turns

GROUPS, GROUP = 8, 8
TURNS = 6
LIMIT = 240
PREFIX = "123+456=3+6+0=9,2+5+0=7,1+4+0=5>579;" * 6
ROUNDS = 3


def config() -> RunConfig:
    return preset("addmix3", run_id="bench", overrides={"learner": {"threads": 1}})


async def make_adapter(folder: Path) -> Path:
    """Version 0 of the policy."""
    async with open_learner(
        config().model_dump_json(), base=addmix3_path(), checkpoint=None, out=folder / "v0",
        deadline_s=300,
    ):  # fmt: skip
        return folder / "v0" / "adapter"


def jobs(tokenizer: Tokenizer) -> list[Job]:
    """Groups of dialogues about a number that is never guessed, so that all have `TURNS` turns."""
    turns = Turns(
        environment="guess-number/1", state=b'{"number":0,"high":9}', before=b"", after=b"",
        max_turns=TURNS, turn_tokens=40,
    )  # fmt: skip
    sampling = Sampling(temperature=1.0, max_new_tokens=LIMIT, stop=tokenizer.eos)
    prompt = tokenizer.encode(f"{PREFIX}a number from 1 to 9:", "raw")
    return [
        Job(prompt, group, index, sampling, turns)
        for group in range(GROUPS)
        for index in range(GROUP)
    ]


def run(kept_bytes: int, adapter: Path) -> tuple[list[Completion], TorchEngine, float]:
    """The answers, the engine, and the best of several times in seconds."""
    tokenizer = Tokenizer.load(addmix3_path())
    text = TurnText.load(addmix3_path(), tokenizer.eos)
    best = float("inf")
    for _ in range(ROUNDS):
        engine = TorchEngine(max_sequences=GROUPS * GROUP, device="cpu", kept_bytes=kept_bytes)
        driver = Driver(engine, lambda stop: text)
        driver.load(addmix3_path(), "float32")
        driver.activate(0, adapter)
        start = time.perf_counter()
        answers = driver.generate(jobs(tokenizer))
        best = min(best, time.perf_counter() - start)
    return answers, engine, best


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        adapter = trio.run(make_adapter, Path(folder))
        kept, ours, our_s = run(KEPT_BYTES, adapter)
        again, rival, rival_s = run(0, adapter)
    assert [one.tokens for one in kept] == [one.tokens for one in again]
    turns = sum(len(one.observed) + 1 for one in kept)
    sampled = sum(len(one.tokens) - sum(end - start for start, end in one.observed) for one in kept)
    print(f"{GROUPS * GROUP} dialogues, {turns} turns, {sampled} sampled tokens")
    print(f"prompt tokens read: {ours.prefixes.read} kept, {rival.prefixes.read} not kept")
    print(f"time: {our_s:.2f} s kept, {rival_s:.2f} s not kept, ratio {rival_s / our_s:.2f}")


if __name__ == "__main__":
    main()
