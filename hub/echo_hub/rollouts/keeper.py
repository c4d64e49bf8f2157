"""Keeps the nodes' standing: judges what was found, bans, quarantines, and tells nodes of verdicts.

The shell around `reputation`, `doors` and `verdicts`. Promises: from the moment a key is banned
nothing of it is admitted any more, and the ledger has the ban, and what becomes of the groups that
wait, before `ban` returns; a node in quarantine works on, and learns of each group that it was left
out, while its standing grows or falls as ever; what operators ask for while the hub serves is done
within a second or two; other changes of standing are on disk as fast.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from echo_hub.audit.sequential import FLOAT32, Noise
from echo_hub.config import AuditSection
from echo_hub.control.actions import Annotate, Ban, NodeAction, Quarantine, Release, Unban
from echo_hub.ledger.decisions import Annotation, Outcome
from echo_hub.ledger.ledger import Ledger, Recovered
from echo_hub.rollouts.assess import Assessed
from echo_hub.rollouts.checks import Code, Rejection
from echo_hub.rollouts.doors import Allowances
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import FAULTS, Reputation
from echo_hub.rollouts.verdicts import Verdicts
from echo_p2p.envelope import seal
from echo_p2p.errors import PeerRefusedError
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import Receipt

REJECTIONS_AT_ONCE = 64
REJECTIONS_PER_S = 20.0
_LONGEST_WAIT_S = 30.0

log = logging.getLogger(__name__)

Evict = Callable[[bytes, Code], tuple[list[int], list[OpenLease]]]
"""Takes everything of a key out of the hub's memory, for this reason: the groups that wait, and
open leases."""


class Keeper:
    """The standing of all nodes of a run."""

    def __init__(
        self,
        *,
        run_id: str,
        rules: AuditSection,
        identity: Identity,
        ledger: Ledger,
        recovered: Recovered,
        clock: Callable[[], float],
        evict: Evict,
        noise: Noise = FLOAT32,
    ) -> None:
        self.reputation = Reputation(rules, recovered.standings, noise=noise)
        self.quarantined = dict(recovered.quarantines)
        """Why each node is in quarantine that is."""
        self._run_id = run_id
        self._identity = identity
        self._ledger = ledger
        self._clock = clock
        self._evict = evict
        self._verdicts = Verdicts()
        self._allowances = Allowances(burst=REJECTIONS_AT_ONCE, per_s=REJECTIONS_PER_S)

    # --- at the door --------------------------------------------------------------------------

    def check(self, node: bytes) -> None:
        """PeerRefusedError if a key is banned."""
        why = self.reputation.banned(node)
        if why is not None:
            raise PeerRefusedError(f"this node is banned from the run: {why}", code="banned")

    async def take_turn(self, node: bytes) -> None:
        """Before a submission is looked at: who was wrong too often of late has to wait."""
        self.check(node)
        wait_s = self._allowances.take(node, trio.current_time())
        if wait_s:
            await trio.sleep(min(wait_s, _LONGEST_WAIT_S))
            self.check(node)

    def received(self, node: bytes, code: Code) -> None:
        """A submission got its receipt."""
        if code is Code.ACCEPTED:
            self._allowances.refund(node, trio.current_time())
        elif code in FAULTS:
            self.reputation.lost(node, self._clock())

    # --- groups -------------------------------------------------------------------------------

    def probability(self, node: bytes) -> float:
        """How likely the next group of a node is to be audited."""
        if node in self.quarantined:
            return 1.0
        return self.reputation.audit_probability(node, self._clock())

    def proven(self, node: bytes) -> bool:
        """Has a node handed in a valid group since the last invalid one?"""
        return node not in self.quarantined and self.reputation.proven(node, self._clock())

    async def judge(self, assessed: Assessed) -> list[float] | Rejection:
        """What becomes of a group, and of its node."""
        node, verdict, now = assessed.group.lease.node, assessed.verdict, self._clock()
        if self.reputation.banned(node):
            return Rejection(Code.BANNED)
        fraud = None
        if assessed.evidence is not None:
            fraud = self.reputation.judge(node, assessed.evidence)
        if fraud is not None:
            await self.ban(node, fraud)
            return verdict if isinstance(verdict, Rejection) else Rejection(Code.BANNED)
        if not isinstance(verdict, Rejection):
            if assessed.group.rewards is None:  # else it was counted before a restart
                self.reputation.earned(node, now)
        elif verdict.code in FAULTS:
            self.reputation.lost(node, now)
        if node in self.quarantined and not isinstance(verdict, Rejection):
            return Rejection(Code.QUARANTINED)
        return verdict

    def expired(self, leases: list[OpenLease]) -> None:
        """Nobody answered these: as bad as a bad answer."""
        for node in {lease.node for lease in leases}:
            self.reputation.lost(node, self._clock())

    def gave_back(self, node: bytes, leases: int) -> None:
        """A node gave open leases back."""
        self.reputation.gave_back(node, leases, self._clock())

    # --- verdicts that come later -------------------------------------------------------------

    def tell(self, node: bytes, lease_id: bytes, rejection: Rejection) -> None:
        """A group that had an accepted receipt is not used after all."""
        receipt = Receipt(
            run_id=self._run_id,
            lease_id=lease_id,
            accepted=False,
            code=rejection.code.value,
            sentence=rejection.for_node,
            at=self._clock(),
        )
        self._verdicts.add(node, receipt)

    def news_for(self, node: bytes) -> tuple[bytes, ...]:
        """Signed verdicts that a node has not been told yet."""
        return tuple(seal(self._identity, receipt) for receipt in self._verdicts.take(node))

    # --- operators ----------------------------------------------------------------------------

    async def do(self, action: NodeAction) -> str:
        """What an operator wants; a sentence that says what was done."""
        name = peer_id_of(action.node)
        match action:
            case Ban():
                await self.ban(action.node, action.why)
                return f"banned {name}"
            case Unban():
                await self.unban(action.node)
                return f"unbanned {name}"
            case Quarantine():
                await self.quarantine(action.node, action.why)
                return f"{name} is in quarantine"
            case Release():
                await self.release(action.node)
                return f"{name} is not in quarantine any more"
            case Annotate():
                words = Annotation(action.name, action.note)
                await self._ledger.decisions.annotate(action.node, words)
                return f"{name} is annotated" if words != Annotation() else f"{name} has no note"

    async def quarantine(self, node: bytes, why: str) -> None:
        """From now on all of a node is audited, and nothing of it trained on."""
        self.quarantined[node] = why
        group_ids, leases = self._evict(node, Code.QUARANTINED)
        await self._ledger.decisions.quarantine(node, why)
        await self._ledger.drop_groups(group_ids, Code.QUARANTINED, release=leases)
        await self._ledger.record_event("node_quarantined", node=peer_id_of(node), why=why)

    async def release(self, node: bytes) -> None:
        """What a node hands in is trained on again, if it is valid."""
        self.quarantined.pop(node, None)
        await self._ledger.decisions.quarantine(node, None)
        await self._ledger.record_event("node_released", node=peer_id_of(node))

    # --- bans ---------------------------------------------------------------------------------

    async def ban(self, node: bytes, why: str) -> None:
        """Shut a key out, with all it has here."""
        now = self._clock()
        record = self.reputation.ban(node, now, why)
        group_ids, leases = self._evict(node, Code.BANNED)
        log.warning("banned %s: %s", peer_id_of(node), why)
        await self._ledger.ban(node, record, group_ids=group_ids, leases=leases)
        await self._ledger.record_event("node_banned", node=peer_id_of(node), why=why)

    async def unban(self, node: bytes) -> None:
        """Let a key in again, as a newcomer."""
        self.reputation.unban(node)
        await self._ledger.unban(node)
        await self._ledger.record_event("node_unbanned", node=peer_id_of(node))

    async def tick(self) -> None:
        """Write down what changed, and do what operators asked for."""
        changed = self.reputation.take_changed()
        if changed:
            await self._ledger.put_standings(changed)
        for request in await self._ledger.decisions.open_requests():
            if isinstance(request.action, NodeAction):  # else the learner's loop looks for it
                sentence = await self.do(request.action)
                await self._ledger.decisions.request_done(request, Outcome(sentence))
