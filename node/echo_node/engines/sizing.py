"""How many answers an engine is given at once, after what it has lived through. Pure.

A failure while answers ran (memory, a hang, a death) halves the number. It grows again by quarters,
each after a calm time; beyond the size that failed last the calm must be longer with each failure,
so that a machine which cannot do more is tried ever more seldom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNPLANNED = 16
"""Answers at a time where no plan can be made and the volunteer named no number."""
CALM_ROUNDS = 8
"""Times that all places must have been answered before there are more of them."""
MOST_CAUTION = 64


@dataclass(frozen=True)
class Sizing:
    """`now` of at most `most` answers at once.

    `failed` is the size at the last failure, `caution` how many times longer the calm must be
    beyond it, `calm` the answers since the last change.
    """

    most: int
    now: int
    failed: int | None = None
    caution: int = 1
    calm: int = 0

    @classmethod
    def full(cls, most: int) -> Sizing:
        """Before anything failed."""
        return cls(most=most, now=most)

    def after_failure(self, running: int) -> Sizing:
        """The engine failed while it had so many answers to do."""
        size = min(self.now, max(1, running, self.now // 2))
        caution = self.caution if self.failed is None else min(2 * self.caution, MOST_CAUTION)
        return replace(self, now=max(1, size // 2), failed=size, caution=caution, calm=0)

    def after_small_memory(self) -> Sizing:
        """Memory ran out before there was anything to do: it was made for too many."""
        most = max(1, self.most // 2)
        return replace(self, most=most, now=min(self.now, most), calm=0)

    def after_answers(self, count: int) -> Sizing:
        """So many answers came without a failure."""
        if self.now >= self.most:
            return self
        calm = self.calm + count
        larger = min(self.most, self.now + max(1, self.now // 4))
        beyond = self.failed is not None and larger >= self.failed
        if calm < CALM_ROUNDS * self.now * (self.caution if beyond else 1):
            return replace(self, calm=calm)
        return replace(self, now=larger, calm=0)
