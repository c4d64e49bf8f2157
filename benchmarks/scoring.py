"""How many groups a second the scorers reward, by their number, for a cheap and a costly reward.

    python benchmarks/scoring.py

A group has 8 answers. `addmix3` is the cheap reward: the pipe and the tokenizer are most of it.
The costly one computes for 5 ms of one core for each answer, so its bound is the cores' number of
groups in 40 ms. Ours is the pool of `echo_hub.scoring.pool`; the bound of the cheap one is the same
tasks and tokenizer called in a loop in this process, with no pipe, limits or deadline.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from echo_hub.config import RunConfig
from echo_hub.models import addmix3_path
from echo_hub.scoring.pool import open_scorers
from echo_hub.tasks import make_task
from echo_hub.tasks.replay import Answered
from echo_hub.tokens import Tokenizer
from echo_p2p.nursery import open_nursery

ANSWERS = 8
SECONDS = 4.0
IN_FLIGHT = 4  # groups a process; the front has one more than processes
COSTLY_MS = 5.0
BASE = addmix3_path()

# reaches the scorers as a sitecustomize module on their path
COSTLY = f"""
import time
import echo_hub.tasks as tasks
from echo_hub.tasks.addmix import AddMix

class Costly(AddMix):
    def reward(self, prompt, answer):
        end = time.thread_time() + {COSTLY_MS / 1000}
        while time.thread_time() < end:
            pass
        return super().reward(prompt, answer)

tasks._TASKS["costly"] = lambda options, seed: Costly(seed)
"""


@contextmanager
def costly_task() -> Iterator[None]:
    """The scorers that are started in this block know the task `costly`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(COSTLY, encoding="utf-8")
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before


async def rate(task: str, processes: int) -> float:
    """Groups a second."""
    config = RunConfig.model_validate(
        {"run": {"id": "b"}, "task": {"name": task}, "scoring": {"processes": processes}}
    )
    tokenizer = Tokenizer.load(BASE)
    answers = [Answered([*tokenizer.encode(">123", "raw"), *tokenizer.eos])] * ANSWERS
    done = 0
    async with open_scorers(config, BASE) as scorers:
        prompts = await scorers.prompts("train", range(256))

        async def work(offset: int) -> None:
            nonlocal done
            index = offset
            while True:
                prompt = prompts[index % 256]
                assert isinstance(prompt, list)
                await scorers.score("train", index % 256, prompt, answers)
                done += 1
                index += 1

        with trio.move_on_after(1.0):  # every scorer has made its prompts
            for index, prompt in enumerate(prompts):
                assert isinstance(prompt, list)
                await scorers.score("train", index, prompt, answers)
        async with open_nursery() as nursery:
            for number in range(IN_FLIGHT * processes):
                nursery.start_soon(work, 7 * number)
            started, before = time.perf_counter(), done
            await trio.sleep(SECONDS)
            finished = done - before
            seconds = time.perf_counter() - started
            nursery.cancel_scope.cancel()
    return finished / seconds


def bound() -> float:
    """Groups a second of the cheap reward, in this process."""
    task, tokenizer = make_task("addmix3", {}, 0), Tokenizer.load(BASE)
    answer = [*tokenizer.encode(">123", "raw"), *tokenizer.eos]
    prompts = [task.prompt("train", index) for index in range(256)]
    started, groups = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        for _ in range(ANSWERS):
            task.reward(prompts[groups % 256], tokenizer.decode(answer))  # type: ignore[arg-type]
        groups += 1
    return groups / (time.perf_counter() - started)


def main() -> None:
    print(f"{os.cpu_count()} cores; groups of {ANSWERS} answers a second")
    print(f"cheap reward, bound (no pipe, one core): {bound():.0f}")
    with costly_task():
        for task, name in (("addmix3", "cheap"), ("costly", f"{COSTLY_MS:.0f} ms an answer")):
            rates = {n: trio.run(rate, task, n) for n in (1, 2)}
            shown = ", ".join(f"{n} process(es) {value:.0f}" for n, value in rates.items())
            print(f"{name}: {shown}; ratio {rates[2] / rates[1]:.2f}")


if __name__ == "__main__":
    main()
