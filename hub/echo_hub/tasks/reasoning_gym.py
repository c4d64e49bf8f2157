"""`reasoning-gym:<dataset>`: any of the reasoning-gym package's generators, scored by its own rule.

Each prompt is made by a dataset of one item with a seed of its own, so it is a pure function of
(split, index) however far the index goes. Some generators iterate over sets: programs that make
prompts here must run with a fixed PYTHONHASHSEED, as the scorer processes do.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping
from typing import Any

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.splits import draw
from echo_p2p.errors import ConfigError

_OURS = ("seed", "size")


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
        self._dataset = dataset
        self._options = dict(options)
        self._seed = seed
        try:
            self._scorer = self._make(0)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"reasoning-gym's {dataset} does not take task.options = {self._options}: {error}."
            ) from error

    def prompt(self, split: Split, index: int) -> Prompt:
        text, entry = draw(split, index, self._seed, self._draw)
        return Prompt(text, entry)

    def reward(self, prompt: Prompt, answer: str) -> float:
        """The dataset's own score of what stands in the last <answer> tag, or of all of it."""
        marked = self._gym.utils.extract_answer(answer)
        return float(
            self._scorer.score_answer(
                answer=answer.strip() if marked is None else marked, entry=dict(prompt.data)
            )
        )

    def _draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        entry = self._make(rng.getrandbits(31))[0]
        return entry["question"], entry

    def _make(self, seed: int) -> Any:
        return self._gym.create_dataset(self._dataset, seed=seed, size=1, **self._options)
