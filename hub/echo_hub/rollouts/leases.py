"""Which work is leased to whom, decided without a clock or a socket.

The rule for training leases. Let `ahead` be the groups that will be consumed before a new one:
buffered, being scored or audited, in the learner's hands, and running at nodes. The learner, at
version v, consumes B of them at each version, so a new group is consumed at about version
`v + ahead // B` and must have been sampled by version `v + ahead // B - S` or later. A node gets a
lease only if its version is that new, and only while `ahead < (S + 1) * B`. With S = 0 this is
sequential mode: the learner and the nodes take turns.

Promises:

- at most (S + 1) * B groups are ahead at any time;
- a lease that is answered at once never becomes stale. The buffer gives out the stalest group
  first (earliest deadline first, which is optimal), and a lease is granted only while all groups
  with its deadline or an earlier one fit into the updates that are left until then;
- it cannot starve the learner: with `ahead < B` a lease needs version v - S, and nodes can have
  one of the last kappa <= S + 1 versions;
- evaluation leases are pinned to one version, go first, and never count as ahead;
- a prompt index is leased to one node at a time; given back or expired, it goes out again under a
  new lease id with a new seed. Seeds come from a secret of the run, so no node can know one
  before its lease, or have the same lease twice.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from echo_hub.tasks.base import Split

EVALUATION_GROUP_SIZE = 1
"""Answers to each held-out prompt: more prompts tell more than more answers to the same ones."""


@dataclass(frozen=True)
class OpenLease:
    """A lease that is out: what the node was told, and what it was not (split and index)."""

    lease_id: bytes
    node: bytes
    split: Split
    index: int
    group_size: int
    seed: int
    min_version: int
    max_version: int | None
    issued_at: float
    expires_at: float


@dataclass(frozen=True)
class LeaseRules:
    """What an operator decides about leases.

    `per_node` bounds the training leases that one node holds at a time, so that a node that dies
    takes little with it. `updates` is the version at which the run is complete; 0 is never.
    """

    groups_per_update: int
    staleness: int
    group_size: int
    seconds: float
    per_node: int
    updates: int = 0


def lease_seed(secret: bytes, lease_id: bytes) -> int:
    """The noise seed of a lease, 63 bits: unpredictable without the run's secret."""
    digest = hashlib.blake2b(lease_id, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class LeaseBook:
    """All open leases of a run, and the work that is still to be leased.

    `draw` says which train prompt is next; without it they go out in order, from `next_index`.
    """

    def __init__(
        self,
        rules: LeaseRules,
        *,
        secret: bytes,
        new_id: Callable[[], bytes],
        version: int = 0,
        next_index: int = 0,
        draw: Callable[[], int] | None = None,
        returned: Iterable[int] = (),
        open_leases: Iterable[OpenLease] = (),
    ) -> None:
        self.version = version
        self._rules = rules
        self._secret = secret
        self._new_id = new_id
        self._draw: Callable[[], int] = draw or itertools.count(next_index).__next__
        self._returned = sorted(returned)
        self._evaluations: dict[int, list[int]] = {}
        self._open: dict[bytes, OpenLease] = {}
        self.running = 0
        """Open training leases."""
        self._running_at: Counter[bytes] = Counter()
        self.held: Counter[bytes] = Counter()
        """Open leases of any kind, by node."""
        self._expiries: list[tuple[float, bytes]] = []
        self._training = True
        for lease in open_leases:
            self.reopen(lease)

    # --- what is out --------------------------------------------------------------------------

    @property
    def next_expiry(self) -> float | None:
        """A time before which no open lease expires."""
        return self._expiries[0][0] if self._expiries else None

    def get(self, lease_id: bytes) -> OpenLease | None:
        """The open lease of that id."""
        return self._open.get(lease_id)

    def limit(self, node_version: int) -> int:
        """Training groups that may be ahead when a node of this version has got its leases."""
        rules = self._rules
        last = min(self.version, node_version) + rules.staleness
        if rules.updates:
            last = min(last, rules.updates - 1)
        return max(0, last - self.version + 1) * rules.groups_per_update if self._training else 0

    def work(self, node_version: int, elsewhere: int) -> int:
        """Groups that a node of this version could be leased now, evaluations included."""
        held_out = len(self._evaluations.get(node_version, ()))
        return held_out + max(0, self.limit(node_version) - elsewhere - self.running)

    def has_work(self, elsewhere: int) -> bool:
        """False if no node of any version could be leased anything now."""
        return any(self._evaluations.values()) or bool(self.work(self.version, elsewhere))

    # --- granting -----------------------------------------------------------------------------

    def grant(
        self, node: bytes, node_version: int, want: int, *, elsewhere: int, now: float
    ) -> list[OpenLease]:
        """Lease up to `want` groups to a node whose newest version is `node_version`.

        Args:
            elsewhere: groups ahead that are not running: buffered, in checks, with the learner.
        """
        granted: list[OpenLease] = []
        held_out = self._evaluations.get(node_version, [])
        while held_out and len(granted) < want:
            index = heapq.heappop(held_out)
            granted.append(self._issue(node, "heldout", index, node_version, node_version, now))
        limit = self.limit(node_version)
        rules = self._rules
        while (
            len(granted) < want
            and elsewhere + self.running < limit
            and self._running_at[node] < rules.per_node
        ):
            consumed_at = self.version + (elsewhere + self.running) // rules.groups_per_update
            minimum = max(0, consumed_at - rules.staleness)
            granted.append(self._issue(node, "train", self._next_prompt(), minimum, None, now))
        return granted

    def _next_prompt(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        return self._draw()

    def _issue(
        self,
        node: bytes,
        split: Split,
        index: int,
        minimum: int,
        maximum: int | None,
        now: float,
    ) -> OpenLease:
        lease_id = self._new_id()
        lease = OpenLease(
            lease_id=lease_id,
            node=node,
            split=split,
            index=index,
            group_size=self._rules.group_size if split == "train" else EVALUATION_GROUP_SIZE,
            seed=lease_seed(self._secret, lease_id),
            min_version=minimum,
            max_version=maximum,
            issued_at=now,
            expires_at=now + self._rules.seconds,
        )
        self.reopen(lease)
        return lease

    def reopen(self, lease: OpenLease) -> None:
        """Count a lease as out: one from the ledger, or one whose answer could not be kept."""
        self._open[lease.lease_id] = lease
        heapq.heappush(self._expiries, (lease.expires_at, lease.lease_id))
        self.held[lease.node] += 1
        if lease.split == "train":
            self.running += 1
            self._running_at[lease.node] += 1

    # --- ends of a lease ----------------------------------------------------------------------

    def answer(self, lease_id: bytes) -> OpenLease:
        """An open lease was answered: it is closed, and its prompt is spent."""
        lease = self._open.pop(lease_id)
        self.held[lease.node] -= 1
        if not self.held[lease.node]:
            del self.held[lease.node]
        if lease.split == "train":
            self.running -= 1
            self._running_at[lease.node] -= 1
            if not self._running_at[lease.node]:
                del self._running_at[lease.node]
        return lease

    def release(self, lease_ids: Sequence[bytes], node: bytes) -> list[OpenLease]:
        """Close those of the leases that this node holds; their prompts go out again."""
        own = []
        for lease_id in lease_ids:
            lease = self._open.get(lease_id)
            if lease is not None and lease.node == node:
                own.append(self.answer(lease_id))
        for lease in own:
            self.give_back(lease)
        return own

    def evict(self, node: bytes) -> list[OpenLease]:
        """Close all leases of a node; their prompts go out again."""
        held = [lease.lease_id for lease in self._open.values() if lease.node == node]
        return self.release(held, node)

    def give_back(self, lease: OpenLease) -> None:
        """Lease the prompt of a closed lease again: nothing that may be trained on came of it."""
        if lease.split == "train":
            heapq.heappush(self._returned, lease.index)
        elif lease.min_version in self._evaluations:
            heapq.heappush(self._evaluations[lease.min_version], lease.index)

    def expire(self, now: float) -> list[OpenLease]:
        """Close every lease whose time is up; their prompts go out again."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now:
            _, lease_id = heapq.heappop(self._expiries)
            lease = self._open.get(lease_id)
            if lease is not None:
                expired.extend(self.release([lease_id], lease.node))
        return expired

    # --- the run ------------------------------------------------------------------------------

    def close_training(self) -> None:
        """Grant no training lease any more."""
        self._training = False

    def open_evaluation(self, version: int, indices: Iterable[int]) -> None:
        """Hand out these held-out prompts to nodes that have exactly this version."""
        self._evaluations[version] = sorted(indices)

    def evaluating(self, version: int) -> bool:
        """Is a lease of this evaluation out?"""
        return any(
            lease.split == "heldout" and lease.min_version == version
            for lease in self._open.values()
        )

    def close_evaluation(self, version: int) -> list[OpenLease]:
        """Withdraw what is left of an evaluation; returns its leases that were out."""
        self._evaluations.pop(version, None)
        left = [
            lease
            for lease in self._open.values()
            if lease.split == "heldout" and lease.min_version == version
        ]
        for lease in left:
            self.answer(lease.lease_id)
        return left
