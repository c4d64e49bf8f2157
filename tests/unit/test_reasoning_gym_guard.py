"""Answers never become code, whichever dataset of reasoning-gym scores them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import reasoning_gym

from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt
from echo_hub.tasks.reasoning_gym_guard import ALGEBRA, ARITHMETIC, LISTS, may_be_scored

EVALUATES = {"eval", "exec", "parse_expr", "sympify", "compile", "literal_eval"}
OF_THEIR_OWN_MAKING = {
    "BF-it": "its own programs",
    "Compiler": "its own programs",
    "basic_arithmetic": "the problem",
    "bf": "its own programs",
    "bitwise_arithmetic": "the problem",
    "codeio": "its own programs",
    "number_sorting": "its own answer",
    "propositional_logic": "a parser of its own, with that name",
    "generators_00_49": "the problem",
    "generators_50_99": "the problem",
}
"""Modules that evaluate something else than an answer. Looked at one by one."""


def test_no_other_dataset_evaluates_anything() -> None:
    evaluating = set()
    for path in Path(reasoning_gym.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in source for name in EVALUATES):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                owner = getattr(getattr(node.func, "value", None), "id", "")
                if name in EVALUATES and owner != "re":
                    evaluating.add(path.stem)
    assert evaluating == LISTS | ARITHMETIC | ALGEBRA | set(OF_THEIR_OWN_MAKING)


@pytest.mark.parametrize("name", sorted(LISTS | ARITHMETIC | ALGEBRA))
def test_an_answer_is_not_run(name: str, tmp_path: Path) -> None:
    task = make_task(f"reasoning-gym:{name}", {}, 0)
    prompt = task.prompt("train", 0)
    file = tmp_path / "made"
    code = f"__import__('pathlib').Path({str(file)!r}).touch()"
    for answer in (code, f"<answer>{code}</answer>", f"[{code}]", f"Symbol({code!r})"):
        assert task.reward(prompt, answer) < 0.5  # type: ignore[arg-type]
    assert not file.exists()


@pytest.mark.parametrize("name", sorted(LISTS | ARITHMETIC | ALGEBRA))
def test_right_answers_pass(name: str) -> None:
    task = make_task(f"reasoning-gym:{name}", {}, 0)
    for index in range(3):
        prompt: Prompt = task.prompt("train", index)
        if "Integral" in prompt.data["answer"]:
            continue  # one that the dataset itself did not solve
        assert may_be_scored(name, prompt.data["answer"])
        assert task.reward(prompt, prompt.data["answer"]) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "9**9**9"),
        ("countdown", "9" * 13),
        ("countdown", "1+" * 300 + "1"),
        ("puzzle24", "\uff11+2"),
        ("puzzle24", "4!"),
        ("simple_integration", "x**9**9"),
        ("simple_integration", "((x**99)**99)**99"),
        ("simple_integration", "x.real"),
        ("simple_integration", "open(x)"),
        ("simple_integration", "x**(9*9)**9"),
        ("simple_integration", "9**(9)**9"),
        ("simple_integration", "Integral(x, x)"),
        ("polynomial_multiplication", "lambda x: x"),
        ("polynomial_multiplication", "x" * 600),
        ("n_queens", "exit()"),
        ("spiral_matrix", "[0] * 10"),
        ("binary_matrix", "{}.x"),
        ("string_insertion", "[" * 20_000),
    ],
)
def test_what_is_more_than_data_is_no_answer(name: str, answer: str) -> None:
    assert not may_be_scored(name, answer)


def test_other_datasets_are_left_alone() -> None:
    assert may_be_scored("chain_sum", "whatever() ** 9")
