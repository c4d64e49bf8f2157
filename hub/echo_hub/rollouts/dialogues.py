"""Dialogues that the hub's own task takes part in: turns in, replies out, each turn asked once.

Promises: only the holder of an open lease is answered, in the order of turns, within the limits of
the run; what was said is in the ledger before the node hears it, and is what the node hears when it
asks again, over any number of sessions and restarts of the hub; a turn once handed in cannot be
another one later (the replay compares them with the group). Nothing is computed twice unless a
scorer process dies of it. A reply that fails closes the lease, which is not the node's fault.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import trio

from echo_hub.ledger.ledger import Ledger
from echo_hub.rollouts.checks import check_lease
from echo_hub.rollouts.leases import OpenLease
from echo_hub.scoring.pool import Scorers
from echo_hub.scoring.process import MadePrompt
from echo_hub.tasks.replay import Told
from echo_p2p.dialogue import Rules
from echo_p2p.errors import LedgerError, PeerRefusedError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import HandedTurn, Sampling, TurnReply, TurnRequest, pack_tokens, unpack_tokens

HOLD_S = 20.0
_NO_REPLY = "the hub could not reply; the group is left out, and it is no fault of yours."
"""How long a node's request is held while its reply is computed; then it asks again."""

ToldOfGroup = list[list[Told]]
"""What was said in each rollout of a lease, turn by turn."""

_decoder = msgspec.msgpack.Decoder(ToldOfGroup)
log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Held:
    told: ToldOfGroup
    working: trio.Event | None = None
    failed: str = ""


@dataclass(frozen=True)
class _Work:
    lease: OpenLease
    held: _Held
    turns: list[tuple[int, list[int]]]


@dataclass
class Dialogues:
    """All that is being said. `on_failed` hears of leases whose reply could not be computed.

    `lease_of` gives the open lease of an id, if there is one.
    """

    scorers: Scorers
    ledger: Ledger
    sampling: Sampling
    vocab_size: int
    lease_of: Callable[[bytes], OpenLease | None]
    clock: Callable[[], float]
    on_failed: Callable[[OpenLease, str], Awaitable[None]]
    _held: dict[bytes, _Held] = field(default_factory=dict)
    _claimed: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._to_do, self._asked = trio.open_memory_channel[_Work](float("inf"))

    def recover(self, stored: Mapping[bytes, bytes]) -> None:
        """What was said before a restart."""
        for lease_id, told in stored.items():
            self._held[lease_id] = _Held(_decoder.decode(told))

    async def run(self) -> None:
        """Compute replies, until cancelled."""
        async with open_nursery() as nursery:
            async for work in self._asked:
                nursery.start_soon(self._work, work)

    # --- a node asks --------------------------------------------------------------------------

    async def take(self, node: bytes, request: TurnRequest) -> TurnReply:
        """What follows these turns; PeerRefusedError with a code if they cannot be taken."""
        lease = self._lease(node, request.lease_id)
        (order,) = await self.scorers.orders(lease.split, [lease.index])
        if isinstance(order, str) or order.turns is None or order.turns.environment:
            raise PeerRefusedError("nothing is said at the hub in this lease.", code="bad_turn")
        held = self._held.get(request.lease_id)
        if held is None:
            held = self._held[request.lease_id] = _Held([[] for _ in range(lease.group_size)])
        with trio.move_on_after(HOLD_S) as held_for:
            while new := self._new(held, request.turns, order):
                if held.working is None:
                    held.working = trio.Event()
                    self._to_do.send_nowait(_Work(lease, held, new))
                await held.working.wait()
                if held.failed:
                    raise PeerRefusedError(held.failed, code="reply_failed")
                self._lease(node, request.lease_id)
        if held_for.cancelled_caught:
            return TurnReply(ready=False, replies=())
        told = [held.told[turn.rollout][turn.number] for turn in request.turns]
        replies = [None if one.text is None else pack_tokens(one.tokens) for one in told]
        return TurnReply(ready=True, replies=tuple(replies))

    def _lease(self, node: bytes, lease_id: bytes) -> OpenLease:
        lease = self.lease_of(lease_id)
        rejection = check_lease(lease, None, node=node, now=self.clock())
        if lease is None or rejection is not None:
            code = "unknown_lease" if rejection is None else rejection.code
            raise PeerRefusedError("the lease is not open for this node.", code=code)
        return lease

    def _new(
        self, held: _Held, turns: tuple[HandedTurn, ...], order: MadePrompt
    ) -> list[tuple[int, list[int]]]:
        """Those of the turns that are not answered yet, each with its rollout."""
        new: list[tuple[int, list[int]]] = []
        for turn in turns:
            if turn.rollout >= len(held.told) or turn.rollout in (rollout for rollout, _ in new):
                raise PeerRefusedError(f"there is no rollout {turn.rollout}.", code="bad_turn")
            told, tokens = held.told[turn.rollout], unpack_tokens(turn.tokens)
            if turn.number < len(told):
                if told[turn.number].turn != tokens:
                    raise PeerRefusedError("it was another turn before.", code="other_turn")
                continue
            fault = self._fault(told, turn.number, tokens, order)
            if fault:
                raise PeerRefusedError(f"rollout {turn.rollout}: {fault}.", code="bad_turn")
            new.append((turn.rollout, tokens))
        return new

    def _fault(self, told: list[Told], number: int, tokens: list[int], order: MadePrompt) -> str:
        rules, stop = Rules.of(self.sampling, order.turns), self.sampling.stop
        so_far = sum(len(one.turn) + len(one.tokens) for one in told)
        faults = (
            (number > len(told), f"turn {number} comes before turn {len(told)}"),
            (bool(told) and told[-1].text is None, "the dialogue is over"),
            (number + 1 >= rules.max_turns, "after its last turn nothing is said"),
            (
                not 1 <= len(tokens) <= min(rules.turn_tokens, rules.max_tokens - so_far),
                f"a turn of {len(tokens)} tokens",
            ),
            (max(tokens, default=0) >= self.vocab_size, "a token outside the vocabulary"),
            (
                [at for at, token in enumerate(tokens) if token in stop] != [len(tokens) - 1],
                "a turn ends with its only stop token",
            ),
        )
        return next((sentence for wrong, sentence in faults if wrong), "")

    async def _work(self, work: _Work) -> None:
        lease, held = work.lease, work.held
        try:
            said = await self.scorers.reply(
                lease.split,
                lease.index,
                [[*(told.turn for told in held.told[i]), turn] for i, turn in work.turns],
            )
            if isinstance(said, str):
                held.failed = _NO_REPLY
                await self.on_failed(lease, said)
                return
            longer = [list(told) for told in held.told]
            for (rollout, _), told in zip(work.turns, said, strict=True):
                longer[rollout].append(told)
            await self.ledger.put_dialogue(lease.lease_id, msgspec.msgpack.encode(longer))
            held.told = longer
        except LedgerError as error:
            held.failed = _NO_REPLY
            log.warning("what was said in a lease could not be kept: %s", error)
        finally:
            assert held.working is not None
            held.working.set()
            held.working = None

    # --- a group comes of it ------------------------------------------------------------------

    def claim(self, lease_id: bytes) -> ToldOfGroup:
        """What was said in a lease that is answered now; kept until `forget`."""
        held = self._held.get(lease_id)
        if held is None:
            return []
        self._claimed.add(lease_id)
        return held.told

    async def forget(self, lease_id: bytes) -> None:
        """The group of a lease was scored, or will never be."""
        self._claimed.discard(lease_id)
        if self._held.pop(lease_id, None) is not None:
            await self.ledger.drop_dialogue(lease_id)

    async def sweep(self) -> None:
        """Forget dialogues whose lease is no longer open, and of which no group came."""
        for lease_id, held in list(self._held.items()):
            over = self.lease_of(lease_id) is None and held.working is None
            if over and lease_id not in self._claimed:
                await self.forget(lease_id)
