"""Your own code on its way to another process: what is carried as source, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from echo_hub.own_code import load_place
from echo_hub.sdk.carry import carry
from echo_hub.sdk.task import task_section
from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt
from echo_p2p.errors import ConfigError

SCRIPT = """
import json
import math as m
import sys
from collections import Counter
from pathlib import Path

from echo_hub import Prompt
from echo_p2p.errors import EchoError

LIMIT = 7
WORDS = ["a", "b", {"c": (1, 2.5, None)}]
SECRET = open(__file__)
print("the script runs")


def helper(x: int) -> int:
    return helper2(x) + LIMIT


def helper2(x):
    return int(m.sqrt(x)) + len(WORDS)


class Base:
    def prompt(self, split, index):
        return Prompt(f"{split} {index}", {"n": helper(index)})


class Mine(Base):
    scale = LIMIT

    def __init__(self, level=3):
        self.level = level

    def reward(self, prompt, answer):
        counted = Counter(answer)
        return float(counted["x"] * self.level + prompt.data["n"])


class Leaks:
    def prompt(self, split, index):
        return Prompt(SECRET.name)

    def reward(self, prompt, answer):
        return 0.0


def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)


def more(prompt, answer):
    return helper(len(answer))


def closed():
    def inner(prompt, answer):
        return 1.0
    return inner


from echo_hub.sdk.carry import carry
from echo_hub.sdk.task import task_section

folder = Path(sys.argv[1])
found = {}
for name, thing in {"mine": Mine, "rec": recursive}.items():
    found[name] = carry(thing, folder)
for name, thing in {"leaks": Leaks, "lambda": lambda p, a: 1.0, "closed": closed()}.items():
    try:
        found[name] = carry(thing, folder)
    except EchoError as error:
        found[name] = str(error)
found["instance"] = task_section(Mine(level=5), None, {"name": "addmix3"}, folder)
found["rewarded"] = task_section(Mine(), more, {"name": "addmix3"}, folder)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a script that was started made of its own classes and functions."""
    root = tmp_path_factory.mktemp("script")
    (root / "run").mkdir()
    (root / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", str(root / "run")],
        cwd=root, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first == "the script runs"
    found: dict[str, str] = json.loads(last)
    return found


def test_a_class_with_all_that_it_uses(
    carried: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(carried["mine"], {}, 0)
    prompt = task.prompt("train", 16)
    assert prompt.data == {"n": 4 + 3 + 7}
    assert task.reward(prompt, "xx") == 2 * 3 + 14  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""  # the script does not run again
    assert load_place(carried["rec"])(5) == 120


def test_an_instance_keeps_its_attributes(carried: dict[str, dict[str, str]]) -> None:
    section = carried["instance"]
    task = make_task(section["name"], section["options"], 0)  # type: ignore[arg-type]
    assert task.reward(Prompt("", {"n": 0}), "x") == 5.0  # type: ignore[arg-type]


def test_another_reward_for_a_task(carried: dict[str, dict[str, str]]) -> None:
    section = carried["rewarded"]
    task = make_task(section["name"], section["options"], 0)  # type: ignore[arg-type]
    prompt = task.prompt("heldout", 1)
    assert prompt.text == "heldout 1"
    assert task.reward(prompt, "x" * 16) == 4 + 3 + 7  # type: ignore[arg-type]


def test_what_cannot_be_carried_is_named(carried: dict[str, str]) -> None:
    assert "Leaks uses SECRET, a TextIOWrapper" in carried["leaks"]
    assert "file:my_task.py:Name" in carried["leaks"]
    for name in ("lambda", "closed"):
        assert "is no class or function at the top of its file" in carried[name]


def test_a_module_goes_by_its_place(tmp_path: Path) -> None:
    from echo_hub.tasks.addmix import AddMix

    assert carry(AddMix, tmp_path) == "module:echo_hub.tasks.addmix:AddMix"
    assert not list(tmp_path.iterdir())


class Odd:
    def __init__(self) -> None:
        self.pair = (1, 2)

    def prompt(self, split: str, index: int) -> Prompt:
        return Prompt("x")

    def reward(self, prompt: Prompt, answer: str) -> float:
        return 0.0


def test_an_instance_with_other_attributes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="JSON would change") as error:
        task_section(Odd(), None, {}, tmp_path)
    assert "task=Odd" in error.value.fix
    odd = Odd()
    odd.pair = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="no plain values"):
        task_section(odd, None, {}, tmp_path)
