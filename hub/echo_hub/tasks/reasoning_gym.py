"""`reasoning-gym:<dataset>`: any of the reasoning-gym package's generators, scored by its own rule.

Prompts come from small datasets, each with a seed of its own, so that a prompt is a pure function
of (split, index) however far the index goes, and a generator that loads word lists does so once a
dataset. Some generators iterate over sets: programs that make prompts here must run with a fixed
PYTHONHASHSEED, as the scorer processes do.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.reasoning_gym_guard import may_be_scored
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.errors import ConfigError

_OURS = ("seed", "size")
_SIZE = 256
_KEPT_DATASETS = 16


class ReasoningGym:
    """One dataset of reasoning-gym with its options."""

    def __init__(self, dataset: str, options: Mapping[str, Any], seed: int) -> None:
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise ConfigError(
                "the package reasoning-gym is not installed.",
                fix="Install the hub's extras: pip install 'echo-p2p[hub]'",
            ) from error
        if dataset not in DATASETS:
            near = difflib.get_close_matches(dataset, DATASETS, n=5, cutoff=0.5)
            raise ConfigError(
                f"reasoning-gym has no dataset {dataset!r}.",
                fix=f"Near it: {', '.join(near)}."
                if near
                else f"It has: {', '.join(sorted(DATASETS))}.",
            )
        taken = [name for name in options if name in _OURS]
        if taken:
            raise ConfigError(f"task.options: {', '.join(taken)} cannot be set; the hub does.")
        self._gym: Any = reasoning_gym
        self._name = dataset
        self._options = dict(options)
        self._seed = seed
        self._dataset = lru_cache(_KEPT_DATASETS)(self._make)
        try:
            self._scorer = self._make("scorer")
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"reasoning-gym's {dataset} does not take task.options = {self._options}: {error}."
            ) from error

    def prompt(self, split: Split, index: int) -> Prompt:
        number, offset = divmod(index, _SIZE)

        def item(attempt: int) -> tuple[str, dict[str, Any]]:
            entry = self._dataset(split, number, attempt)[offset]
            return entry["question"], entry

        text, entry = draw(split, item)
        return Prompt(text, entry)

    def reward(self, prompt: Prompt, answer: str) -> float:
        """The dataset's own score of what stands in the last <answer> tag, or of all of it."""
        marked = self._gym.utils.extract_answer(answer)
        given: str | None = answer.strip() if marked is None else marked
        if given is not None and not may_be_scored(self._name, given):
            given = None
        return float(self._scorer.score_answer(answer=given, entry=dict(prompt.data)))

    def _make(self, *which: str | int) -> Any:
        seed = rng_of(self._seed, *which).getrandbits(31)
        return self._gym.create_dataset(self._name, seed=seed, size=_SIZE, **self._options)
