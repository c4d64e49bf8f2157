"""Submissions in: checked, kept, receipted.

Promises: an accepted receipt is signed only when its group is in the ledger; a lease is answered
once, by its own node, in time; what fails a check has its reason code in the receipt, the tally and
the ledger. A lease whose answer was signed by its node and is wrong is spoilt: the node cannot try
again, and the prompt goes to another lease at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from echo_hub.ledger.ledger import Ledger
from echo_hub.ledger.trace import SPOILT
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.checks import (
    ClosedLease,
    Code,
    Rejection,
    Standing,
    check_content,
    check_envelope,
    check_lease,
)
from echo_hub.rollouts.dialogues import Dialogues
from echo_hub.rollouts.granting import Granter
from echo_hub.rollouts.keeper import Keeper
from echo_hub.rollouts.leases import OpenLease
from echo_hub.tally import Tally
from echo_p2p.envelope import seal
from echo_p2p.errors import LedgerError
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import Receipt, Submission, Submit, SubmitReply, sampled_tokens

log = logging.getLogger(__name__)

_NO_LEASE = bytes(16)


class Intake:
    """Answers submissions. `on_accepted` takes each group from here, at once."""

    def __init__(
        self,
        *,
        run_id: str,
        group_size: int,
        identity: Identity,
        ledger: Ledger,
        granter: Granter,
        tally: Tally,
        clock: Callable[[], float],
        standing: Callable[[], Standing],
        keeper: Keeper,
        dialogues: Dialogues,
        on_accepted: Callable[[Group], None],
    ) -> None:
        self._run_id = run_id
        self._group_size = group_size
        self._identity = identity
        self._ledger = ledger
        self._granter = granter
        self._tally = tally
        self._clock = clock
        self._standing = standing
        self._keeper = keeper
        self._dialogues = dialogues
        self._on_accepted = on_accepted
        self._writing: dict[bytes, OpenLease] = {}
        self.writing = 0
        """Training groups that are being written to the ledger."""

    async def submit(self, node: bytes, request: Submit) -> SubmitReply:
        """Check and keep what a node handed in, and sign the receipt."""
        await self._keeper.take_turn(node)
        opened = check_envelope(request.envelope, run_id=self._run_id, node=node)
        if isinstance(opened, Rejection):
            return await self._reject(node, _NO_LEASE, opened, self._group_size)
        submission = opened.message
        lease_id = submission.lease_id
        lease = self._granter.book.get(lease_id)
        closed = None if lease is not None else await self._closed_lease(lease_id)
        rejection = check_lease(lease, closed, node=node, now=self._clock())
        if rejection is None and lease is not None:
            rejection = check_content(submission, lease, self._standing())
            if rejection is None:
                await self._accept(lease, submission, request.envelope)
                return self._receipt(lease_id, Code.ACCEPTED, Code.ACCEPTED.sentence)
            await self._granter.release([lease_id], node)
            trace = {"trace": lease_id.hex(), "code": str(rejection.code)}
            log.info("refused at the door: %s", rejection.sentence, extra=trace)
            await self._ledger.record_event(
                SPOILT,
                lease=lease_id.hex(),
                node=peer_id_of(node),
                code=rejection.code,
                why=rejection.sentence,
            )
        assert rejection is not None
        return await self._reject(node, lease_id, rejection, len(submission.rollouts))

    async def _closed_lease(self, lease_id: bytes) -> ClosedLease | None:
        lease = self._writing.get(lease_id)
        if lease is not None:
            return ClosedLease(lease.node, answered=True)
        return await self._ledger.closed_lease(lease_id)

    async def _accept(self, lease: OpenLease, submission: Submission, envelope: bytes) -> None:
        rollouts = len(submission.rollouts)
        told = self._dialogues.claim(lease.lease_id)
        self._granter.book.answer(lease.lease_id)
        self._writing[lease.lease_id] = lease
        self.writing += lease.split == "train"
        try:
            group_id = await self._ledger.add_group(
                lease,
                version=submission.version,
                rollouts=rollouts,
                tokens=sum(map(sampled_tokens, submission.rollouts)),
                envelope=envelope,
            )
        except LedgerError:
            self._granter.book.reopen(lease)  # nothing was promised: it may be handed in again
            raise
        finally:
            del self._writing[lease.lease_id]
            self.writing -= lease.split == "train"
        log.debug("handed in", extra={"trace": lease.lease_id.hex(), "group": group_id})
        self._keeper.received(lease.node, Code.ACCEPTED)
        self._granter.answered(lease, self._clock())
        self._tally.accept(lease.node, rollouts, self._clock())
        sampling = self._standing().sampling
        self._on_accepted(replace(Group.of(group_id, lease, submission, sampling), told=told))

    async def _reject(
        self, node: bytes, lease_id: bytes, rejection: Rejection, rollouts: int
    ) -> SubmitReply:
        self._keeper.received(node, rejection.code)
        self._tally.reject(node, rejection.code, rollouts)
        await self._ledger.count_rejected(node, rejection.code, rollouts)
        return self._receipt(lease_id, rejection.code, rejection.sentence)

    def _receipt(self, lease_id: bytes, code: Code, sentence: str) -> SubmitReply:
        receipt = Receipt(
            run_id=self._run_id,
            lease_id=lease_id,
            accepted=code is Code.ACCEPTED,
            code=code.value,
            sentence=sentence,
            at=self._clock(),
        )
        return SubmitReply(receipt=seal(self._identity, receipt))
