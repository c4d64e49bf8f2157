"""Tasks: prompts that are pure functions of (split, index), splits that share none, rewards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt, Task, Transcript
from echo_hub.tasks.guess_number import GuessNumber
from echo_hub.tasks.splits import draw, held_out
from echo_p2p.errors import ConfigError

NAMES = [
    "addmix3", "few-shot-addition", "reasoning-gym:chain_sum", "reasoning-gym:gcd", "sokoban",
    "knights-knaves", "mathematics", "countdown",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_a_function_of_split_and_index(name: str) -> None:
    one, other = make_task(name, {}, 3), make_task(name, {}, 3)
    forward = [one.prompt("train", index).text for index in range(20)]
    backward = [other.prompt("train", index).text for index in reversed(range(20))]
    assert forward == backward[::-1]
    assert len(set(forward)) > 10
    assert one.prompt("train", 10**9) == other.prompt("train", 10**9)
    assert make_task(name, {}, 4).prompt("train", 0) != one.prompt("train", 0)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_prompt_whatever_the_seed(name: str) -> None:
    first, second = make_task(name, {}, 0), make_task(name, {}, 1)
    train = {first.prompt("train", index).text for index in range(300)}
    for task in (first, second):
        assert not train & {task.prompt("heldout", index).text for index in range(100)}


def test_a_source_with_too_few_prompts_says_so() -> None:
    key = next(str(i) for i in range(100) if not held_out(str(i)))
    assert draw("train", lambda attempt: (key, 1)) == (key, 1)
    with pytest.raises(ConfigError, match="too few different prompts"):
        draw("heldout", lambda attempt: (key, 1))


def sum_of(prompt: Prompt) -> int:
    a, b = prompt.text.splitlines()[-1].rstrip("=").split("+")
    return int(a) + int(b)


def rewards(task: Task, answers: list[str]) -> list[float]:
    prompt = task.prompt("train", 0)
    return [task.reward(prompt, answer.replace("SUM", str(sum_of(prompt)))) for answer in answers]


def test_addmix3_rewards_the_number_after_the_mark() -> None:
    task = make_task("addmix3", {}, 0)
    text = task.prompt("train", 0).text
    assert len(text) == 8
    assert text[3] == "+"
    assert text[7] == "="
    answers = ["7+2+0=9>SUM", "SUM", ">SUM ", ">0SUM", ">SUM>1", ">1>SUM", "", ">"]
    assert rewards(task, answers) == [1, 0, 0, 0, 0, 1, 0, 0]


def test_few_shot_addition_rewards_the_first_number_of_the_first_line() -> None:
    task = make_task("few-shot-addition", {}, 0)
    assert task.prompt("train", 0).text.count(" = ") == 4
    answers = [" SUM\n9 + 9 = 18", " SUM", "SUM.", " is SUM", "\n\nSUM", " 1 SUM", " SUM1", "", "x"]
    assert rewards(task, answers) == [1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_reasoning_gym_scores_by_its_own_rule() -> None:
    task = make_task("reasoning-gym:chain_sum", {"min_terms": 2, "max_terms": 2}, 0)
    prompt = task.prompt("heldout", 5)
    answer = prompt.data["answer"]
    assert prompt.data["metadata"]["num_terms"] == 2
    assert task.reward(prompt, f" {answer}\n") == 1.0
    assert task.reward(prompt, f"so it is <answer>{answer}</answer>.") == 1.0
    assert task.reward(prompt, "a thousand") < 1.0


def test_unknown_names_and_options_say_what_exists() -> None:
    with pytest.raises(ConfigError, match=r"addmix3, .*sokoban, .*, reasoning-gym:<dataset>"):
        make_task("addmix4", {}, 0)
    with pytest.raises(ConfigError, match=r"no dataset 'chainsum'\. Near it: chain_sum"):
        make_task("reasoning-gym:chainsum", {}, 0)
    with pytest.raises(ConfigError, match=r"no dataset 'qqqq'\. It has: ab, "):
        make_task("reasoning-gym:qqqq", {}, 0)
    with pytest.raises(ConfigError, match=r"does not take task\.options"):
        make_task("reasoning-gym:chain_sum", {"terms": 3}, 0)
    with pytest.raises(ConfigError, match="seed cannot be set"):
        make_task("reasoning-gym:chain_sum", {"seed": 3}, 0)
    with pytest.raises(ConfigError, match="has no options, so not digits"):
        make_task("addmix3", {"digits": 4}, 0)


def test_two_processes_make_the_same_prompts() -> None:
    """These two iterate over sets; the scorer fixes PYTHONHASHSEED for their sake."""
    code = (
        "from echo_hub.tasks import make_task\n"
        "for name in ('isomorphic_strings', 'ransom_note'):\n"
        "    print(repr(make_task('reasoning-gym:' + name, {}, 1).prompt('train', 3)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_guess_number_rewards_finding_it_and_coming_near() -> None:
    task = GuessNumber({"high": 99, "turns": 4}, 0)
    prompt = task.prompt("train", 0)
    assert prompt.turns is not None
    assert (prompt.turns.max_turns, prompt.turns.environment) == (4, "guess-number/1")
    number = prompt.data["number"]
    assert number not in (int(digits) for digits in prompt.text.split() if digits.isdigit())

    def reward(*answers: str) -> float:
        observations = ("lower:",) * (len(answers) - 1)
        return task.reward(prompt, Transcript(answers, observations))

    assert reward("1", f"is it {number}?") == 1.0
    assert reward(f"{number}") == 1.0
    assert 0 < reward(f"{number + 2 if number < 50 else number - 2}") < 0.5
    assert [reward(""), reward("none", "0"), reward("1000")] == [0, 0, 0]
    assert {task.prompt("train", i).data["number"] for i in range(2000)} >= set(range(1, 50))


@pytest.mark.parametrize("options", [{"high": 1}, {"high": 9.0}, {"turns": 65}, {"low": 1}])
def test_guess_number_refuses_options_it_does_not_have(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"guess-number|task\.options"):
        GuessNumber(options, 0)
