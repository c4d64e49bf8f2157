"""When a run that keeps being set back is paused. Pure.

A refused update is nothing unusual, several in a row are a fault that no retry mends; and so is a
learner that dies on one batch again and again, or returns to the same version time after time: a
reward that broke refuses nothing until it has "collapsed" once more, some updates later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class Setbacks:
    """Counts setbacks; each method says whether the run must pause. `most` of a kind are allowed
    before that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._returns: Counter[int] = Counter()
        self.forgiven()

    @property
    def in_a_row(self) -> int:
        """Updates refused since the last one that was applied."""
        return self._refused

    def applied(self) -> None:
        """An update was applied."""
        self._refused = self._deaths = 0

    def refused(self) -> bool:
        """An update was refused, and its batch dropped."""
        self._refused += 1
        self._deaths = 0
        return self._refused >= self._most

    def explained(self) -> None:
        """An update was refused because of false groups, which are gone: no fault of the run's."""
        self._deaths = 0

    def died(self) -> bool:
        """The learner died on a batch; True: the batch must not be tried again."""
        self._deaths += 1
        return self._deaths >= self._most

    def returned(self, version: int) -> bool:
        """The learner went back to this version."""
        self._returns[version] += 1
        return self._returns[version] >= self._most

    def forgiven(self) -> None:
        """An operator let the run go on."""
        self._refused = self._deaths = 0
        self._returns.clear()


def version_to_return_to(kept: Collection[int], back_to: int) -> int:
    """Of the versions whose checkpoints are kept, the newest that is known to be good; the oldest
    if none is that old."""
    return max((version for version in kept if version <= back_to), default=min(kept))


def kept_versions(
    versions: Collection[int], *, newest: int, published: Collection[int], good: int | None
) -> set[int]:
    """Of the versions on disk, those to keep: the `newest` of them, and the one that a collapse
    would return to."""
    kept = set(sorted(versions)[-newest:])
    if good is not None and (known := set(versions) & set(published)):
        kept.add(version_to_return_to(known, good))
    return kept
