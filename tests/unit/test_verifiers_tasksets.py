"""Tasksets of the verifiers package: read, asked in one turn, scored by their own rewards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt
from echo_hub.tasks.verifiers_tasksets import Verifiers
from echo_p2p.errors import ConfigError, TaskError

TASKSET = """
import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    total: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.total))

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        if trace.last_reply == "raise":
            raise RuntimeError("no score")
        return float(len(trace.last_reply) < 5)


class SumsConfig(vf.TasksetConfig):
    highest: int = 9
    image: str | None = None


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for a in range(self.config.highest):
            for b in range(self.config.highest):
                data = SumData(prompt=f"{a}+{b}=?", system_prompt="Add.", total=a + b,
                               image=self.config.image)
                yield SumTask(data, self.config.task)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("verifiers.v1")
    (tmp_path / "echo_test_sums.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "echo-test-sums"
    sys.modules.pop("echo_test_sums", None)


def total(prompt: Prompt) -> str:
    system, _, question = prompt.text.partition("\n\n")
    assert system == "Add."
    a, b = question.removesuffix("=?").split("+")
    return str(int(a) + int(b))


def test_a_taskset_is_asked_and_scores(package: str) -> None:
    task = make_task(f"verifiers:{package}", {"config": {"highest": 6}}, 1)
    assert isinstance(task, Verifiers)
    train = [task.prompt("train", index) for index in range(80)]
    apart = {task.prompt("heldout", index).text for index in range(80)}
    assert len({prompt.text for prompt in train}) + len(apart) == 36
    assert not apart & {prompt.text for prompt in train}
    assert [task.reward(train[0], answer) for answer in (total(train[0]), "100", "100000")] == [
        1.25, 0.25, 0.0,
    ]  # fmt: skip
    with pytest.raises(TaskError, match="cannot score"):
        task.reward(train[0], "raise")


def test_what_needs_more_than_an_answer_is_refused(package: str) -> None:
    with pytest.raises(ConfigError, match="needs a container"):
        Verifiers(package, {"config": {"image": "debian"}}, 1)
    with pytest.raises(ConfigError, match="too few to split"):
        Verifiers(package, {"config": {"highest": 1}}, 1)
    with pytest.raises(ConfigError, match=r"(?s)cannot load the taskset .*colour"):
        Verifiers(package, {"config": {"colour": 1}}, 1)
    with pytest.raises(ConfigError, match="cannot load the taskset 'echo-no-such-taskset'"):
        Verifiers("echo-no-such-taskset", {}, 1)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match=r"not installed.*") as caught:
        Verifiers("anything", {}, 1)
    assert "pip install 'verifiers>=0.4" in caught.value.fix
