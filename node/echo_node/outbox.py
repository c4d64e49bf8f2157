"""What a node still owes its hub: submissions without a receipt, and leases to give back.

Promises: a submission is signed once and stays here, over any number of sessions, until the hub has
answered it; a lease to give back too. `duplicate` is an answer: an earlier try arrived and was
accepted, only its receipt was lost (a hub says it of groups that it keeps, and of no others).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

import trio

from echo_node.hub import Hub
from echo_node.notice import Notice
from echo_p2p.envelope import seal
from echo_p2p.errors import PeerRefusedError
from echo_p2p.identity import Identity
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import Receipt, Submission

FINAL_REFUSALS = frozenset({"bad_message", "too_large", "wrong_run", "banned"})
"""Refusals that a second try would only repeat."""
MAX_TRIES = 5
TOKEN_BYTES = 4
AT_ONCE = 8
MOST_REMEMBERED = 20_000
"""Leases whose tokens are known if a verdict on them comes later."""


def sampled_tokens(submission: Submission) -> int:
    """Tokens of a group that the policy sampled, and no environment wrote."""
    return sum(
        len(rollout.tokens) // TOKEN_BYTES - sum(end - start for start, end in rollout.observed)
        for rollout in submission.rollouts
    )


def retry_delay_s(tries: int) -> float:
    """Pause after a hub refused a request `tries` times."""
    return min(30.0, 0.25 * 2.0**tries)


class Outbox:
    """Kept by a node for as long as it runs; `deliver` works it off during a session."""

    def __init__(self, identity: Identity, notice: Notice) -> None:
        self.accepted = 0
        self.rejected: Counter[str] = Counter()
        """Groups by the reason code of their receipt, or of a later verdict."""
        self.credit = 0
        """Tokens that the policy sampled in the groups that are accepted."""
        self._tokens: OrderedDict[bytes, int] = OrderedDict()  # by lease, of the last ones
        self._identity = identity
        self._notice = notice
        self._unsent: dict[bytes, bytes] = {}
        self._to_return: list[bytes] = []

    @property
    def empty(self) -> bool:
        return not self._unsent and not self._to_return

    @property
    def unsent(self) -> int:
        """Submissions without a receipt."""
        return len(self._unsent)

    def submit(self, submission: Submission) -> None:
        """Sign a group and keep it until the hub has answered."""
        self._unsent[submission.lease_id] = seal(self._identity, submission)
        self._tokens[submission.lease_id] = sampled_tokens(submission)
        while len(self._tokens) > MOST_REMEMBERED:
            self._tokens.popitem(last=False)
        self._notice.tell()

    def give_back(self, lease_ids: Iterable[bytes]) -> None:
        """Leases that will not be answered."""
        self._to_return.extend(lease_ids)
        self._notice.tell()

    def overrule(self, verdict: Receipt) -> None:
        """The hub found a group unfit that it had accepted."""
        self.accepted -= 1
        self.credit -= self._tokens.pop(verdict.lease_id, 0)
        self.rejected[verdict.code] += 1

    async def deliver(self, hub: Hub) -> None:
        """Hand in what there is, as it comes; a NetError leaves the rest for the next session."""
        slots = trio.CapacityLimiter(AT_ONCE)
        while True:
            await self._notice.until(lambda: not self.empty)
            if self._to_return:
                going = self._to_return[:1024]
                await hub.give_back(going)
                del self._to_return[: len(going)]
            async with open_nursery() as nursery:
                for lease_id, envelope in list(self._unsent.items()):
                    nursery.start_soon(self._hand_in, hub, lease_id, envelope, slots)
            self._notice.tell()

    async def _hand_in(
        self, hub: Hub, lease_id: bytes, envelope: bytes, slots: trio.CapacityLimiter
    ) -> None:
        code = ""
        async with slots:
            for tries in range(1, MAX_TRIES + 1):
                try:
                    receipt = await hub.submit(envelope, lease_id)
                    code = "" if receipt.accepted else receipt.code
                    break
                except PeerRefusedError as error:
                    code = error.code
                    if code in FINAL_REFUSALS:
                        break
                await trio.sleep(retry_delay_s(tries))
        del self._unsent[lease_id]
        if code in ("", "duplicate"):
            self.accepted += 1
            self.credit += self._tokens.get(lease_id, 0)
        else:
            self.rejected[code] += 1
