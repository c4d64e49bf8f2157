"""Offline filtering: what the base solves, what is kept, and that a run then asks nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echo_hub.commands.filtering import Band, filter_run
from echo_hub.commands.presets import preset
from echo_hub.commands.template import render_config
from echo_hub.models import addmix3_path
from echo_hub.paths import RunFolder
from echo_hub.scoring.process import MakePrompts, Scorer, Setup, TaskSetup
from echo_hub.tasks.kept import read_kept
from echo_hub.tasks.mixture import Mixture
from echo_p2p.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    made.config.write_text(render_config(preset("addmix3", run_id="a", overrides={})))
    return made


def setup(kept: str, seed: int = 0) -> Setup:
    task = TaskSetup(name="addmix3", options={}, template="raw", kept=kept)
    return Setup(
        tasks=[task], seed=seed, base=str(addmix3_path()), longest_prompt=100, max_new_tokens=8,
        memory=256, network=False,
    )  # fmt: skip


@pytest.mark.slow
def test_what_is_kept_is_all_that_is_asked(folder: RunFolder) -> None:
    out, seen = folder.root / "kept.json", []
    (one,) = filter_run(
        folder, out, prompts=24, rollouts=4, band=Band(0.25, 0.75),
        progress=lambda task, done, total: seen.append((task, done, total)),
    )  # fmt: skip
    assert seen[-1] == ("addmix3", 24, 24)
    assert [index for index, _ in one.rates] == list(range(24))
    assert one.prompts == [i for i, rate in one.rates if 0.25 <= rate <= 0.75]
    assert 0 < len(one.prompts) < 24  # a base that solves about a third of all sums
    plain, filtered = Scorer(setup("")), Scorer(setup(str(out)))
    every = plain.prompts(MakePrompts(split="train", indices=one.prompts))
    asked = filtered.prompts(MakePrompts(split="train", indices=list(range(2 * len(one.prompts)))))
    assert asked.prompts == every.prompts * 2  # type: ignore[union-attr]
    held = MakePrompts(split="heldout", indices=[0, 1])
    assert filtered.prompts(held) == plain.prompts(held)
    with pytest.raises(ConfigError, match="was made for addmix3 \\(seed 0\\), and not for addmix3"):
        Scorer(setup(str(out), seed=1))


@pytest.mark.slow
def test_a_band_that_keeps_nothing_writes_nothing(folder: RunFolder) -> None:
    out = folder.root / "kept.json"
    with pytest.raises(ConfigError, match=r"none of 2 prompts .* by 90% to 91%"):
        filter_run(
            folder, out, prompts=2, rollouts=2, band=Band(0.9, 0.91), progress=lambda *done: None
        )
    assert not out.exists()


def test_a_band_that_is_none(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match="a band from"):
        filter_run(
            folder, folder.root / "kept.json", prompts=2, rollouts=2, band=Band(0.9, 0.1),
            progress=lambda *done: None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read"),
        ("[", "is no file of echo-hub filter"),
        ('[{"label": 3}]', "is no file of echo-hub filter"),
        ("[]", "was made for nothing"),
    ],
)
def test_files_that_filter_did_not_make(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    path = tmp_path / "kept.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        read_kept(str(path), name="addmix3", options={}, seed=0)
    values = {
        "label": "a", "name": "addmix3", "options": {}, "seed": 0, "base": "", "rollouts": 2,
        "low": 0.0, "high": 1.0, "rates": [[0, 0.5]], "prompts": [],
    }  # fmt: skip
    path.write_text(json.dumps([values]))
    with pytest.raises(ConfigError, match="keeps no prompt"):
        read_kept(str(path), name="addmix3", options={}, seed=0)


def test_buckets_of_kept_prompts_are_single_prompts() -> None:
    mixture = Mixture([1, 3], kept=[[], [7, 11, 30]])
    numbers = mixture.first_of(1, 6)
    assert [mixture.place("train", number) for number in numbers] == [
        (1, index) for index in (7, 11, 30, 7, 11, 30)
    ]
    assert {mixture.arm_of(number): mixture.place("train", number)[1] for number in numbers} == {
        1: 7,
        2: 11,
        3: 30,
    }
