"""Several tasks in a run: how prompts are numbered, drawn by weight and success, and measured."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.commands.template import render_config
from echo_hub.config import CurriculumSection, RunConfig, TaskSection
from echo_hub.rollouts.curriculum import Curriculum, History, TaskMeters, _Weights, by_task
from echo_hub.tasks.mixture import MOST_ARMS, Mixture
from echo_p2p.errors import ConfigError
from echo_p2p.toml import parse_toml

RUN = '[run]\nid = "a"\n'
ALWAYS, NEVER, MIXED = [1.0] * 4, [0.0] * 4, [1.0, 0.0, 1.0, 0.0]


def tasks(*weights: float, **fields: object) -> list[TaskSection]:
    return [
        TaskSection.model_validate({"label": f"t{i}", "weight": weight, **fields})
        for i, weight in enumerate(weights)
    ]


def curriculum(
    of: list[TaskSection], *, seed: int = 0, history: History | None = None, **rules: float
) -> Curriculum:
    mixture = Mixture([task.buckets for task in of], [task.weight for task in of])
    section = CurriculumSection.model_validate(rules)
    return Curriculum(mixture, of, section, seed=seed, history=history or History({}, {}))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(0, 10**12),
    st.data(),
)
def test_a_number_names_one_prompt_of_one_arm(
    buckets: list[int], count: int, data: st.DataObject
) -> None:
    mixture = Mixture(buckets)
    arm = data.draw(st.integers(0, len(mixture.arms) - 1))
    number = mixture.number(arm, count)
    assert mixture.arm_of(number) == arm
    task, index = mixture.place("train", number)
    assert (task, index % buckets[task]) == (mixture.arms[arm].task, mixture.arms[arm].bucket)
    assert index // buckets[task] == count
    held = data.draw(st.integers(0, 10**6))
    task, index = mixture.place("heldout", held)
    assert index * len(buckets) + task == held


def test_the_first_prompts_of_a_task_are_its_own_first() -> None:
    mixture = Mixture([1, 3])
    for task in (0, 1):
        places = [mixture.place("train", number) for number in mixture.first_of(task, 5)]
        assert places == [(task, index) for index in range(5)]
    assert Mixture([1]).first_of(0, 3) == [0, 1, 2]  # a run with one task numbers as it always did
    with pytest.raises(LookupError, match="no longer has"):
        mixture.place("train", MOST_ARMS - 1)


def test_draws_follow_the_weights_and_the_seed() -> None:
    of = tasks(3, 1)
    one, same, other = (curriculum(of, seed=seed) for seed in (5, 5, 6))
    numbers = [one.draw() for _ in range(2000)]
    assert numbers == [same.draw() for _ in range(2000)]
    assert numbers != [other.draw() for _ in range(2000)]
    assert len(set(numbers)) == 2000
    assert Counter(n % MOST_ARMS for n in numbers)[0] == pytest.approx(1500, abs=100)
    counts = sorted(n // MOST_ARMS for n in numbers if n % MOST_ARMS == 1)
    assert counts == list(range(len(counts)))  # each task's own prompts go out in order, none left


def test_a_restart_goes_on_with_the_same_draws() -> None:
    of = tasks(1, 2, 1)
    rules = {"window": 3, "outside": 0.2}
    one, rng = curriculum(of, **rules), random.Random(1)
    drawn: list[tuple[int, list[float]]] = []
    for _ in range(200):
        number = one.draw()
        rewards = rng.choice([ALWAYS, NEVER, MIXED])
        one.observe(number, rewards)
        drawn.append((number, rewards))
    history = History(
        Counter(number % MOST_ARMS for number, _ in drawn),
        {arm: [r for n, r in drawn if n % MOST_ARMS == arm][-3:] for arm in range(3)},
    )
    again = curriculum(of, history=history, **rules)
    assert [again.draw() for _ in range(50)] == [one.draw() for _ in range(50)]


@pytest.mark.parametrize("useless", [ALWAYS, NEVER])
def test_what_is_always_or_never_solved_is_drawn_less_until_that_changes(
    useless: list[float],
) -> None:
    one = curriculum(tasks(1, 1), window=2, outside=0.05)

    def share() -> float:
        return sum(one.draw() % MOST_ARMS == 0 for _ in range(1000)) / 1000

    one.observe(0, useless)
    assert share() == pytest.approx(0.5, abs=0.06)  # one group is not yet a window
    one.observe(0, useless)
    assert share() == pytest.approx(0.05 / 1.05, abs=0.03)
    assert one.outside(0) == 1
    one.observe(0, MIXED)
    assert share() == pytest.approx(0.5, abs=0.06)


def test_dropped_for_good_but_never_all_of_them() -> None:
    one = curriculum(tasks(1, 1), window=1, outside=0)
    one.observe(0, NEVER)
    assert {one.draw() % MOST_ARMS for _ in range(200)} == {1}
    one.observe(1, ALWAYS)
    assert {one.draw() % MOST_ARMS for _ in range(200)} == {0, 1}


def test_buckets_of_a_task_are_dropped_one_by_one() -> None:
    one = curriculum(tasks(1, buckets=4), window=1, outside=0)
    for bucket in (0, 2):
        one.observe(bucket, ALWAYS)
    assert {one.draw() % MOST_ARMS for _ in range(200)} == {1, 3}
    assert one.outside(0) == 0.5


@given(
    st.lists(st.sampled_from([0.0, 0.1, 1.0, 1e-9]), min_size=1, max_size=700),
    st.lists(st.tuples(st.integers(0, 699), st.sampled_from([0.0, 0.3, 2.0])), max_size=20),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_at_its_share_and_never_of_weight_zero(
    weights: list[float], changes: list[tuple[int, float]], share: float
) -> None:
    drawn = _Weights(weights)
    for number, weight in changes:
        if number < len(weights):
            weights[number] = weight
            drawn.set(number, weight)
    if not any(weights):
        assert drawn.total == 0
        return
    number = drawn.at(share)
    assert weights[number] > 0
    before, after = math.fsum(weights[:number]), math.fsum(weights[: number + 1])
    point, slack = share * math.fsum(weights), 1e-9 * math.fsum(weights)
    assert before - slack <= point <= after + slack


def test_a_band_and_partial_rewards() -> None:
    one = curriculum(tasks(1, 1, solved_at=0.5), window=1, low=0.3, high=0.8, outside=0)
    one.observe(0, [0.4, 0.4, 0.4, 0.5])  # a quarter solved: under the band
    one.observe(1, [0.5, 0.6, 0.1, 0.0])
    assert {one.draw() % MOST_ARMS for _ in range(100)} == {1}


def test_metrics_of_each_task() -> None:
    meters = TaskMeters([TaskSection(name="a:b.c"), TaskSection(label="hard", solved_at=0.5)])
    meters.observe(0, [1.0, 0.0], [10, 20])
    meters.observe(0, [1.0, 1.0], [30, 40])
    meters.observe(1, [0.5, 0.25], [1, 3])
    assert by_task({"loss": 1.0, **meters.take()}) == {
        "a:b.c": {
            "groups": 2, "reward_mean": 0.75, "pass_rate": 0.75, "length_mean": 25,
            "zero_advantage": 0.5,
        },
        "hard": {
            "groups": 1, "reward_mean": 0.375, "pass_rate": 0.5, "length_mean": 2,
            "zero_advantage": 0,
        },
    }  # fmt: skip
    assert meters.take() == {}


def test_several_tasks_in_run_toml_and_back() -> None:
    text = RUN + (
        '[[tasks]]\nname = "addmix3"\nweight = 2.5\n'
        '[[tasks]]\nname = "reasoning-gym:gcd"\nlabel = "hard"\n[tasks.options]\nmax_value = 9\n'
    )
    config = parse_toml(text, RunConfig, source="run.toml")
    assert [task.called for task in config.all_tasks] == ["addmix3", "hard"]
    assert config.shown_tasks == "addmix3 + hard"
    assert parse_toml(render_config(config), RunConfig, source="run.toml") == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[task]\nname = "addmix3"\n[[tasks]]\n', r":3: task: .* has both"),
        ("[[tasks]]\n[[tasks]]\n", r":4: tasks\.1: two tasks are called 'addmix3'"),
        ("[[tasks]]\nweight = 0\n", r":4: tasks\.0\.weight"),
        ("[[tasks]]\nwaight = 1\n", r":4: tasks\.0\.waight: there is no such key"),
        ("[[tasks]]\nlabel = 'a'\nbuckets = 65536\n[[tasks]]\n", "more than 65536"),
    ],
)
def test_wrong_tasks_in_run_toml(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_toml(RUN + text, RunConfig, source="run.toml")
