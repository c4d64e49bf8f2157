"""Says, not too often, that rewards cannot be computed: the run would stand still in silence."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Unscored:
    """Counts groups in a row that could not be scored; warns of the 1st, the 10th, the 100th, ...

    It never stops the run: a node may have found answers that make a reward fail.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._next = 1

    def scored(self) -> None:
        """A group was scored."""
        self._in_a_row, self._next = 0, max(self._next, 10)

    def failed(self, why: str) -> None:
        """A group could not be scored."""
        self._in_a_row += 1
        if self._in_a_row < self._next:
            return
        self._next *= 10
        many = "" if self._in_a_row == 1 else f", the last {self._in_a_row} in a row"
        log.warning("a group could not be scored%s; it is left out: %s", many, why.rstrip())
