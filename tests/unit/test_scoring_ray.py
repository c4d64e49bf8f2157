"""A pool of scorers on a Ray cluster: its places here, and all of it where Ray is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import trio
from test_scoring import BASE, answer, config, hostile

from echo_hub.rollouts.checks import Rejection
from echo_hub.scoring.pool import open_scorers
from echo_hub.scoring.process import ANSWERS, Failed, MakePrompts, Prompts, Ready, Setup, TaskSetup
from echo_hub.scoring.ray_place import Place, ScorerLostError
from echo_p2p.errors import ProcessError
from echo_p2p.wire import decode, encode

__all__ = ["hostile"]  # a fixture

HAVE_RAY = importlib.util.find_spec("ray") is not None
FILES = {path.name: path.read_bytes() for path in BASE.glob("*.json")}


def place(task: str, *, memory: int = 256) -> Place:
    setup = Setup(
        tasks=[TaskSetup(name=task, options={}, template="raw")],
        seed=0,
        base="/nowhere",
        longest_prompt=100,
        max_new_tokens=8,
        memory=memory,
        network=False,
    )
    return Place(encode(setup), FILES, ["HOSTILE_MARK"])


def make(one: Place, index: int) -> object:
    command = MakePrompts(split="train", indices=[index])
    return decode(one.ask(encode(command), 20.0), ANSWERS)


def test_a_place_has_a_scorer_with_the_files_it_was_sent() -> None:
    one = place("addmix3")
    try:
        assert isinstance(decode(one.start(), ANSWERS), Ready)
        made = make(one, 0)
        assert isinstance(made, Prompts)
    finally:
        one.close()
    assert not one._folder.exists()


def test_a_place_passes_on_that_a_task_cannot_be_made() -> None:
    one = place("nonsense")
    try:
        said = decode(one.start(), ANSWERS)
        assert isinstance(said, Failed)
        assert "no task 'nonsense'" in said.message
    finally:
        one.close()


SLOW_PROMPTS = """
import os, time
import echo_hub.tasks as tasks
from echo_hub.tasks.base import Prompt

class Moody:
    def prompt(self, split, index):
        if index == 1:
            time.sleep(1000)
        if index == 2:
            os._exit(3)
        if index == 3:
            bytearray(1 << 31)
        return Prompt("+", {})

tasks._TASKS["moody"] = lambda options, seed: Moody()
"""


def test_a_place_gets_a_new_scorer_when_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_PROMPTS)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), path])))
    one = place("moody", memory=128)
    try:
        one.start()
        with pytest.raises(ScorerLostError, match="did not answer in time"):
            one.ask(encode(MakePrompts(split="train", indices=[1])), 0.5)
        assert isinstance(make(one, 0), Prompts)
        with pytest.raises(ScorerLostError, match="ended with code 3"):
            make(one, 2)
        if sys.platform == "linux":
            said = make(one, 3)
            assert isinstance(said, Failed)
            assert said.spent
        assert isinstance(make(one, 0), Prompts)
    finally:
        one.close()
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if str(tmp_path) in child.environ().get("PYTHONPATH", "")
    ]


@pytest.mark.skipif(HAVE_RAY, reason="Ray is installed")
def test_without_ray_the_start_says_what_to_install() -> None:
    async def main() -> None:
        async with open_scorers(config("addmix3", pool="ray"), BASE):
            raise AssertionError("not reached")

    with pytest.raises(ProcessError, match=r"package ray is not installed .*echo-p2p\[hub,ray\]"):
        trio.run(main)


@pytest.fixture
def cluster(tmp_path: Path, hostile: None) -> Iterator[str]:
    """The address of a cluster on this machine."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, client = one.getsockname()[1], other.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    folder = f"/tmp/echo-ray-{os.getpid()}"
    subprocess.run(
        [
            *ray, "start", "--head", "--num-cpus=4", f"--port={port}",
            "--node-ip-address=127.0.0.1", f"--ray-client-server-port={client}",
            "--include-dashboard=false", f"--temp-dir={folder}",
            "--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0",
        ],
        check=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    try:
        yield f"ray://127.0.0.1:{client}"
    finally:
        ours = [
            process
            for process in psutil.process_iter(["cmdline"])
            if folder in " ".join(process.info["cmdline"] or [])
        ]
        for process in {child for one in ours for child in [one, *one.children(recursive=True)]}:
            process.kill()
        subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_RAY, reason="Ray is not installed")
def test_a_cluster_scores_each_group_once_and_outlives_what_is_lost(cluster: str) -> None:
    async def main() -> None:
        rules = config("hostile", pool=cluster, processes=2, timeout_s=2.0)
        with trio.fail_after(300):
            async with open_scorers(rules, BASE) as scorers:
                prompt = (await scorers.prompts("train", [0]))[0]
                assert isinstance(prompt, list)
                for text, sentence in (("1", "did not answer"), ("2", "ended with code 3")):
                    said = await scorers.score("train", 0, prompt, [answer(text)])
                    assert isinstance(said, Rejection)
                    assert sentence in said.sentence
                assert await scorers.score("train", 0, prompt, [answer("5")]) == [1.0]
                outcomes: list[object] = []

                async def score() -> None:
                    outcomes.append(await scorers.score("train", 0, prompt, [answer("7")]))

                async with trio.open_nursery() as nursery:
                    for number in range(60):
                        nursery.start_soon(score)
                        if number in (20, 40):
                            _kill_a_place()
                        await trio.sleep(0.05)
                assert outcomes == [[1.0]] * 60

    trio.run(main)


def _kill_a_place() -> None:
    places = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "ray::Place" in " ".join(process.info["cmdline"] or [])
    ]
    if places:
        places[0].kill()
