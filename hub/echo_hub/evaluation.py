"""One evaluation: the held-out prompts of a version, and the rewards of their answers as they come.

Pure. A prompt whose answer could not be scored is asked again; after three failures it is left
out, because a failure to score is not a reward of zero.
"""

from __future__ import annotations

from collections import Counter

_MOST_FAILURES = 3


class Evaluation:
    """The held-out prompts 0..`prompts`-1 under one version."""

    def __init__(self, version: int, prompts: int) -> None:
        self.version = version
        self.group_ids: list[int] = []
        self._waiting = set(range(prompts))
        self._rewards: dict[int, float] = {}
        self._failures: Counter[int] = Counter()

    @property
    def finished(self) -> bool:
        """Every prompt is answered or left out."""
        return not self._waiting

    @property
    def answered(self) -> int:
        """Prompts with a reward."""
        return len(self._rewards)

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each answered prompt, in the order of the prompts."""
        return [self._rewards[index] for index in sorted(self._rewards)]

    def answer(self, index: int, group_id: int, rewards: list[float]) -> None:
        """A prompt's answers were scored."""
        self._waiting.discard(index)
        self._rewards[index] = sum(rewards) / len(rewards)
        self.group_ids.append(group_id)

    def fail(self, index: int) -> bool:
        """A prompt's answers were not fit to be counted. True if it is to be asked again."""
        self._failures[index] += 1
        if self._failures[index] < _MOST_FAILURES:
            return True
        self.leave_out(index)
        return False

    def leave_out(self, index: int) -> None:
        """A prompt that cannot be asked or scored at all."""
        self._waiting.discard(index)
