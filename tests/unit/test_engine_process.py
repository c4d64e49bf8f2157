"""The engine's process: survives its own errors, is replaced when it dies or hangs."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from engine_models import check_completion, make_adapter, make_base, reference
from net_support import until

from echo_node.engines import link, remote
from echo_node.engines.base import Job, Resources
from echo_node.engines.patience import MAX_FAILURES, restart_delay_s, stall_s
from echo_node.engines.remote import RemoteEngine, open_engine
from echo_node.engines.sizing import CALM_ROUNDS, Sizing
from echo_p2p.errors import EngineError, ProcessError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import Sampling


def jobs(count: int, limit: int, *, prompt: int = 2) -> list[Job]:
    """With prompts of so many tokens, that differ."""
    sampling = Sampling(temperature=1.0, max_new_tokens=limit, stop=())
    return [
        Job([5 + index % 50, 5 + index // 50 % 50, *[6] * (prompt - 2)], 1, index, sampling)
        for index in range(count)
    ]


MANY = 1024
"""Answers at once whose memory is more than what a new process has free from its start."""
SHORT, LONG = jobs(2, 8), jobs(64, 90)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("adapter"), 1)


def _pid(engine: RemoteEngine) -> int:
    assert engine._child is not None
    return engine._child.pid


def test_an_engine_works_fails_dies_hangs_and_goes_on(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        log = tmp_path / "logs" / "engine.log"
        async with open_engine(threads=1, max_sequences=MANY, log_path=log) as engine:
            info = await engine.load(base, "float32")
            assert (info.name, info.max_sequences) == ("torch", MANY)
            with pytest.raises(EngineError, match="no policy version"):
                await engine.generate(SHORT)
            with pytest.raises(EngineError, match="cannot read"):
                await engine.activate(1, tmp_path)
            await engine.activate(1, adapter)
            answers = await engine.generate(SHORT)
            check_completion(reference(base, adapter), SHORT[1], answers[1])
            restarts = 0
            if sys.platform == "linux":
                await _run_out_of_memory(engine)
                restarts = 1
                assert await engine.generate(SHORT) == answers
            await _be_suspended(engine)
            assert await engine.generate(SHORT) == answers
            assert engine.restarts == restarts
            first = _pid(engine)

            os.kill(first, signal.SIGKILL)
            with pytest.raises(ProcessError, match="ended with code -9"):
                await engine.generate(LONG)
            assert await engine.generate(SHORT) == answers  # same base, same version
            second = _pid(engine)
            assert second != first

            monkeypatch.setattr(link, "stall_s", lambda tokens, pause: 0.2)
            os.kill(second, signal.SIGSTOP)
            with pytest.raises(ProcessError, match="sampled no token in 0 s"):
                await engine.generate(SHORT)
            monkeypatch.undo()
            with pytest.raises(EngineError, match="cannot read"):
                await engine.activate(2, tmp_path)
            again = await engine.generate(SHORT)
            assert [one.tokens for one in again] == [one.tokens for one in answers]
            assert engine.restarts == restarts + 2

    trio.run(main)


async def _run_out_of_memory(engine: RemoteEngine) -> None:
    """No byte more than it has; what it has free is not enough for so many answers."""
    memory = psutil.Process(_pid(engine)).memory_info().vms
    resource.prlimit(_pid(engine), resource.RLIMIT_AS, (memory, memory))
    failures = engine.failures
    with pytest.raises(ProcessError, match="memory ran out"):
        await engine.generate(jobs(MANY, 8, prompt=80))
    assert (engine.capacity, engine.failures) == (MANY // 2, failures + 1)


async def _be_suspended(engine: RemoteEngine) -> None:
    """In the midst of work; calls then wait until it is resumed."""

    async def work() -> None:
        with pytest.raises(ProcessError, match="is suspended"):
            await engine.generate(jobs(8 * MANY, 90))

    capacity = engine.capacity
    async with open_nursery() as nursery:
        nursery.start_soon(work)
        with trio.fail_after(60):
            await until(lambda: engine.under_way[1])  # tokens of answers that are not done
        assert engine.under_way[0] == capacity  # the others wait
        pid = _pid(engine)
        await engine.suspend()
    assert not psutil.pid_exists(pid)
    assert engine.capacity == capacity  # nothing failed
    async with open_nursery() as nursery:
        nursery.start_soon(engine.generate, SHORT)
        await trio.testing.wait_all_tasks_blocked()
        assert engine._child is None
        engine.resume()


def test_an_engine_that_says_what_none_says_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints = {
        "tokens": "tokens outside the vocabulary",
        "numbers": "log-probabilities that are missing or not finite",
        "length": "9 tokens, where 1 to 8",
        "version": "version 2, where 1 was asked for",
        "bytes": "2 bytes that are no",
        "unasked": "sent Activated, which nobody asked for",
    }
    plan = tmp_path / "plan"
    plan.write_text("\n".join(complaints))
    monkeypatch.setattr(remote, "ENGINE_MODULE", "garbage_engine")
    monkeypatch.setattr(remote, "restart_delay_s", lambda failures: 0.0)
    monkeypatch.setenv("GARBAGE", str(plan))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))

    async def main() -> None:
        async with open_engine(threads=1, max_sequences=8, log_path=tmp_path / "log") as engine:
            part = Resources(device="cuda:1", context=77)
            engine.use(max_sequences=8, resources=part)
            info = await engine.load(tmp_path, "float32")
            assert (info.device, info.context) == (part.device, part.context)
            await engine.activate(1, tmp_path)
            for complaint in complaints.values():
                with pytest.raises(ProcessError, match=complaint):
                    await engine.generate(SHORT)
            assert len(await engine.generate(SHORT)) == len(SHORT)
            assert engine.restarts == engine.failures == len(complaints)

    trio.run(main)


def test_an_engine_gets_fewer_answers_after_a_failure_and_more_with_calm() -> None:
    plan = Sizing.full(64)
    assert plan.after_answers(10_000) == plan
    failed = plan.after_failure(running=64)
    assert failed.now == 32
    assert plan.after_failure(running=2).now == 16  # few ran: that many more would not help
    calm, now = 0, failed
    while now.now == 32:
        now, calm = now.after_answers(1), calm + 1
    assert (now.now, calm) == (40, CALM_ROUNDS * 32)
    # what failed once more is tried again only after a longer time
    again = now.after_failure(running=40)
    assert again.now == 20
    assert again.after_answers(CALM_ROUNDS * 20).now == 25
    near = again
    while near.now < 32:
        near = near.after_answers(CALM_ROUNDS * near.now)
    assert near.after_answers(CALM_ROUNDS * near.now).now == near.now
    assert near.after_answers(2 * CALM_ROUNDS * near.now).now > near.now
    for _ in range(20):
        again = again.after_failure(running=again.now)
    assert again.now == 1
    assert plan.after_small_memory().most == 32


def test_an_engine_that_never_answers_is_given_up(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "restart_delay_s", lambda failures: 0.0)
    deaths = []

    async def kill_each(engine: RemoteEngine) -> None:
        while True:
            if engine._child is not None and engine._child.pid not in deaths:
                deaths.append(engine._child.pid)
                engine.kill()
            await trio.sleep(0.005)

    async def main() -> None:
        async with (
            open_engine(threads=1, max_sequences=4, log_path=tmp_path / "log") as engine,
            open_nursery() as nursery,
        ):
            nursery.start_soon(kill_each, engine)
            while True:
                with pytest.raises(ProcessError, match="ended with code -9"):
                    await engine.load(base, "float32")

    with pytest.raises(EngineError, match=r"failed 5 times in a row.*last words"):
        trio.run(main)
    assert len(deaths) == MAX_FAILURES


def test_patience_grows_with_the_prompts_and_with_pauses_that_ended() -> None:
    assert stall_s(1000, 0.0) > stall_s(10, 0.0) > 60
    assert stall_s(10, 1e9) > stall_s(10, 2.0) > stall_s(10, 1.0)
    assert stall_s(0, 1e9) < 1000
    assert [restart_delay_s(n) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert restart_delay_s(1000) == 30.0
