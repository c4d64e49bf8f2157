"""The scorer pool: real child processes, a task that misbehaves on demand."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trio
from net_support import until

from echo_hub.config import RunConfig
from echo_hub.models import addmix3_path
from echo_hub.rollouts.checks import Code, Rejection
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.scoring.process import checked_prompt
from echo_hub.tasks import Prompt
from echo_hub.tasks.replay import Answered
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError

BASE = addmix3_path()
TOKENIZER = Tokenizer.load(BASE)

# A task of the test's own reaches the child as a sitecustomize module on its path.
HOSTILE_TASK = r"""
import os, socket, subprocess, time
import echo_hub.tasks as tasks
from echo_hub.tasks.base import Prompt

class Hostile:
    def prompt(self, split, index):
        if index == 13:
            raise ValueError("no thirteen")
        return Prompt("+" * (1000 if index == 14 else 3), {})

    def reward(self, prompt, answer):
        if answer == "1":
            time.sleep(1000)
        if answer == "2":
            os._exit(3)
        if answer == "3":
            raise RuntimeError("this answer upsets me")
        if answer == "4":
            return float("nan")
        if answer == "5" and not os.path.exists(os.environ["HOSTILE_MARK"]):
            open(os.environ["HOSTILE_MARK"], "w").close()
            os._exit(3)
        if answer == "6":
            bytearray(1 << 28)
        if answer == "8":
            descriptors = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
            return os.environ.get("HUB_SECRET", "") == "" and descriptors < 9
        if answer == "9":
            child = subprocess.Popen(["sleep", "1000"])
            with open(os.environ["HOSTILE_MARK"], "w") as file:
                file.write(str(child.pid))
            time.sleep(1000)
        if answer == "+":
            raise SystemExit(3)
        if answer == ",":
            return "1"
        if answer == "=":
            return 1e308
        if answer == ">":
            class Mute(Exception):
                def __str__(self):
                    raise ValueError
            raise Mute
        if answer == "1+":
            raise ValueError("half a \ud800 pair")
        if answer == "0":
            port = int(os.environ["HOSTILE_PORT"])
            socket.create_connection(("127.0.0.1", port)).close()
        return 1.0

tasks._TASKS["hostile"] = lambda options, seed: Hostile()
"""


def config(task: str, **scoring: object) -> RunConfig:
    if task == "hostile":
        scoring["environment"] = ["HOSTILE_MARK", "HOSTILE_PORT"]
    return RunConfig.model_validate(
        {"run": {"id": "run"}, "task": {"name": task}, "scoring": scoring}
    )


def with_scorers(run_config: RunConfig, body: Callable[[Scorers], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(180):
            async with open_scorers(run_config, BASE) as scorers:
                await body(scorers)

    trio.run(main)
    assert not _scorer_processes()


OTHERS: set[psutil.Process] = set()
"""Scorers of a hub that other tests of this session keep running."""


@pytest.fixture(autouse=True)
def _note_others() -> Iterator[None]:
    OTHERS.update(_scorer_processes())
    yield
    OTHERS.clear()


def _scorer_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "echo_hub.scoring.process" in " ".join(child.cmdline()) and child not in OTHERS
    ]


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOSTILE_TASK)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), path])))
    monkeypatch.setenv("HOSTILE_MARK", str(tmp_path / "mark"))


def answer(text: str) -> Answered:
    return Answered([*TOKENIZER.encode(text, "raw"), *TOKENIZER.eos])


def test_prompts_and_rewards_of_a_group() -> None:
    async def body(scorers: Scorers) -> None:
        prompts = await scorers.prompts("train", [0, 1])
        assert prompts == await scorers.prompts("train", [0, 1])
        first = prompts[0]
        assert isinstance(first, list)
        a, b = TOKENIZER.decode(first).rstrip("=").split("+")
        rewards = await scorers.score(
            "train", 0, first, [answer(f"x>{int(a) + int(b)}"), answer("x>1"), answer("")]
        )
        assert rewards == [1.0, 0.0, 0.0]

    with_scorers(config("addmix3"), body)


def test_another_prompt_than_the_tasks_is_not_scored() -> None:
    async def body(scorers: Scorers) -> None:
        rejection = await scorers.score("train", 0, [5, 6], [answer("1")])
        assert isinstance(rejection, Rejection)
        assert "same prompt" in rejection.sentence

    with_scorers(config("addmix3"), body)


def test_an_unknown_task_stops_the_start() -> None:
    async def body(scorers: Scorers) -> None:
        raise AssertionError("not reached")

    with pytest.raises(ConfigError, match="no task 'nonsense'"):
        with_scorers(config("nonsense"), body)


def test_an_answer_as_long_as_the_model_stops_the_start() -> None:
    async def body(scorers: Scorers) -> None:
        raise AssertionError("not reached")

    too_long = config("addmix3").model_dump() | {"sampling": {"max_new_tokens": 512}}
    with pytest.raises(ConfigError, match="max_new_tokens = 512 leaves no room for a prompt"):
        with_scorers(RunConfig.model_validate(too_long), body)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("sums", "'sums', which is no Prompt"),
        (None, "no Prompt"),
        (Prompt(b"?"), "which is no str"),
    ],
)
def test_what_is_no_prompt_is_said(returned: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        checked_prompt(returned)


@pytest.mark.usefixtures("hostile")
def test_what_goes_wrong_is_a_failure_and_never_a_reward() -> None:
    async def body(scorers: Scorers) -> None:
        prompts = await scorers.prompts("train", [12, 13, 14])
        prompt = prompts[0]
        assert isinstance(prompt, list)
        assert prompts[1] == "ValueError: no thirteen"
        assert "1000 tokens" in prompts[2]
        pid = _scorer_processes()[0].pid
        for text, sentence in (
            ("3", "RuntimeError: this answer"),
            ("4", "not all finite"),
            ("+", "SystemExit: 3"),
            (",", "reward() returned '1', which is no number"),
            ("=", "not all within 1e+09"),
            (">", "Mute"),
            ("1+", r"half a \ud800 pair"),
        ):
            rejection = await scorers.score("train", 12, prompt, [answer("7"), answer(text)])
            assert isinstance(rejection, Rejection)
            assert rejection.code is Code.SCORE_FAILED
            assert sentence in rejection.sentence
        assert _scorer_processes()[0].pid == pid  # an exception is an answer: nothing to kill
        for text, sentence in (("1", "did not answer"), ("2", "ended with code 3")):
            rejection = await scorers.score("train", 12, prompt, [answer(text)])
            assert isinstance(rejection, Rejection)
            assert sentence in rejection.sentence
        assert await scorers.score("train", 12, prompt, [answer("7")]) == [1.0]

    with_scorers(config("hostile", timeout_s=1.0), body)


@pytest.mark.usefixtures("hostile")
@pytest.mark.skipif(sys.platform != "linux", reason="limits are enforced on Linux")
def test_memory_network_environment_and_what_a_reward_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(scorers: Scorers) -> None:
        prompt = (await scorers.prompts("train", [0]))[0]
        assert isinstance(prompt, list)
        for text, sentence in (
            ("6", "more memory than scoring.memory"),
            ("0", "Network is unreachable"),
        ):
            rejection = await scorers.score("train", 0, prompt, [answer("7"), answer(text)])
            assert isinstance(rejection, Rejection)
            assert rejection.code is Code.SCORE_FAILED
            assert sentence in rejection.sentence
        assert await scorers.score("train", 0, prompt, [answer("8")]) == [1.0]
        rejection = await scorers.score("train", 0, prompt, [answer("9")])
        assert isinstance(rejection, Rejection)
        started = int((tmp_path / "mark").read_text())
        await until(lambda: _is_gone(started))  # killed with its scorer

    monkeypatch.setenv("HUB_SECRET", "a key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOSTILE_PORT", str(server.getsockname()[1]))
        with_scorers(config("hostile", memory=128, timeout_s=1.0), body)


@pytest.mark.usefixtures("hostile")
def test_the_operator_may_leave_the_network_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scorers: Scorers) -> None:
        prompt = (await scorers.prompts("train", [0]))[0]
        assert isinstance(prompt, list)
        assert await scorers.score("train", 0, prompt, [answer("0")]) == [1.0]

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOSTILE_PORT", str(server.getsockname()[1]))
        with_scorers(config("hostile", network=True), body)


@pytest.mark.usefixtures("hostile")
def test_a_crash_is_tried_once_more_in_a_fresh_process() -> None:
    async def body(scorers: Scorers) -> None:
        prompt = (await scorers.prompts("train", [0]))[0]
        assert isinstance(prompt, list)
        assert await scorers.score("train", 0, prompt, [answer("5")]) == [1.0]
        for process in _scorer_processes():  # and one that is killed while idle
            os.kill(process.pid, signal.SIGKILL)
        assert await scorers.score("train", 0, prompt, [answer("7")]) == [1.0]

    with_scorers(config("hostile"), body)


@pytest.mark.usefixtures("hostile")
def test_a_pool_goes_on_while_one_scorer_hangs() -> None:
    async def body(scorers: Scorers) -> None:
        prompt = (await scorers.prompts("train", [0]))[0]
        assert isinstance(prompt, list)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scorers.score, "train", 0, prompt, [answer("1")])
            for _ in range(20):
                assert await scorers.score("train", 0, prompt, [answer("7")]) == [1.0]
            nursery.cancel_scope.cancel()

    with_scorers(config("hostile", processes=2), body)


def test_the_scorer_imports_no_torch() -> None:
    async def main() -> None:
        code = "import echo_hub.scoring.process, reasoning_gym, sys; print('torch' in sys.modules)"
        result = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
        assert result.stdout == b"False\n"

    trio.run(main)


@pytest.mark.parametrize("task", ["addmix3", "reasoning-gym:leg_counting"])
def test_prompts_that_the_base_cannot_read_are_warned_of_once(
    task: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(scorers: Scorers) -> None:
        for split in ("train", "heldout"):
            await scorers.prompts(split, range(8))  # type: ignore[arg-type]

    with_scorers(config(task), body)
    told = [record.getMessage() for record in caplog.records if "no token for" in record.msg]
    assert len(told) == (task != "addmix3")
    for warning in told:
        assert "'Y' in 'Your task is to count" in warning


def test_the_task_is_tried_before_anybody_asks(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scorers: Scorers) -> None:
        await until(lambda: bool(caplog.records))

    with_scorers(config("reasoning-gym:leg_counting"), body)
