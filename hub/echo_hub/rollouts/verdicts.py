"""Verdicts that came after the receipt, kept until their node asks for leases again. Pure.

A receipt says `accepted` when a group is on disk; reward, audit and staleness are judged later.
What they find is told with the next `LeaseGrant`, signed, as another receipt for the same lease.
Nobody collects for nodes that never come back: the oldest verdicts are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from echo_p2p.wire import MAX_VERDICTS, Receipt

_MOST_NODES = 10_000


class Verdicts:
    """What is still to be told, by node."""

    def __init__(self) -> None:
        self._by_node: OrderedDict[bytes, deque[Receipt]] = OrderedDict()

    def add(self, node: bytes, receipt: Receipt) -> None:
        """A group that was accepted is not used after all."""
        self._by_node.setdefault(node, deque(maxlen=MAX_VERDICTS)).append(receipt)
        self._by_node.move_to_end(node)
        while len(self._by_node) > _MOST_NODES:
            self._by_node.popitem(last=False)

    def take(self, node: bytes) -> list[Receipt]:
        """What a node is told now, and then no more."""
        return list(self._by_node.pop(node, ()))
