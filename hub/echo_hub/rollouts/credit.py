"""What volunteers are told they gave, and under which name: statements signed by the hub.

Promises: a statement says what the ledger says, no more; a name or a person is attached to a
machine only by the person's own signature over that machine's key, handed in by the machine itself;
asking often costs the ledger nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from echo_hub.ledger.credit import Vouched
from echo_hub.ledger.ledger import Ledger
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import PeerRefusedError, WireError
from echo_p2p.identity import Identity
from echo_p2p.wire import Credit, CreditReply, Done, Introduce, Voucher

FRESH_S = 10.0
"""For so long a statement is not made again."""
EARLY_S = 86_400.0
"""A voucher may be dated so far ahead of the hub's clock: people's clocks are off."""
_MOST_KEPT = 10_000


class Credits:
    """Answers `Introduce` and `CreditRequest`."""

    def __init__(
        self, *, run_id: str, identity: Identity, ledger: Ledger, clock: Callable[[], float]
    ) -> None:
        self._run_id = run_id
        self._identity = identity
        self._ledger = ledger
        self._clock = clock
        self._made: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    async def introduce(self, node: bytes, said: Introduce) -> Done:
        """Keep a person's word for the machine that hands it in; PeerRefusedError if it is none."""
        try:
            opened = open_envelope(said.voucher, Voucher)
        except WireError as error:
            raise PeerRefusedError(error.message, code="bad_message") from error
        voucher = opened.message
        if voucher.machine != node:
            raise PeerRefusedError("this voucher is for another machine.", code="bad_message")
        if voucher.at > self._clock() + EARLY_S:
            raise PeerRefusedError("this voucher is from the future.", code="bad_message")
        vouched = Vouched(node, opened.key, voucher.name, voucher.at)
        if await self._ledger.voucher_of(node) != vouched:
            await self._ledger.put_voucher(vouched)
        self._made.pop(node, None)
        return Done()

    async def statement(self, node: bytes) -> CreditReply:
        """What a node has given until now, signed."""
        now = self._clock()
        at, envelope = self._made.get(node, (0.0, b""))
        if not envelope or not at <= now < at + FRESH_S:
            envelope = seal(self._identity, await self._credit(node, now))
            self._made[node] = (now, envelope)
            self._made.move_to_end(node)
            while len(self._made) > _MOST_KEPT:
                self._made.popitem(last=False)
        return CreditReply(credit=envelope)

    async def _credit(self, node: bytes, now: float) -> Credit:
        given, vouched, since = await self._ledger.credit_of(node)
        return Credit(
            run_id=self._run_id,
            node=node,
            person=None if vouched is None else vouched.person,
            name="" if vouched is None else vouched.name,
            groups=given.groups,
            rollouts=given.rollouts,
            tokens=given.tokens,
            audited_tokens=given.audited_tokens,
            since=now if since is None else since,
            at=now,
        )
