"""Handing leases to nodes that ask: who waits, who gets how many, and what is written down first.

Nodes that find no work wait in order, one request a node; whatever changes (a version, a batch
taken, a lease back) is looked at once for all of them, and shared out evenly, so that the first
does not take it all. Nodes that the roster keeps on standby wait on, and get nothing. A lease is in
the ledger before its node sees it, and if the request ends before that, it is as if the lease had
never been.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from echo_hub.config import RunConfig
from echo_hub.ledger.ledger import Ledger, Recovered
from echo_hub.planner.roster import Roster
from echo_hub.rollouts.leases import LeaseBook, LeaseRules, OpenLease
from echo_hub.rollouts.pace import Paces
from echo_hub.scoring.pool import Scorers
from echo_hub.scoring.process import MadePrompt
from echo_p2p.envelope import seal
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import Lease, LeaseGrant, LeaseRequest, Sampling, pack_tokens

log = logging.getLogger(__name__)

REQUESTS_A_NODE_MAY_HOLD = 2  # the batch it works on, and the next one
_MOST_BAD_PROMPTS = 100


@dataclass(eq=False)
class _Waiter:
    node: bytes
    version: int
    groups: int
    done: trio.Event = field(default_factory=trio.Event)
    granted: list[OpenLease] = field(default_factory=list)


class Granter:
    """Grants leases.

    `elsewhere` counts the groups ahead that are not running; `on_skipped` hears of leases whose
    prompt could not be made, `on_freed` that there may be work for nodes that wait. Nodes that are
    not `proven` have `in_check` groups, and may have no more in hand than `lease.newcomer_share`
    of one update, together; so no update has more of them.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        identity: Identity,
        ledger: Ledger,
        scorers: Scorers,
        sampling: Sampling,
        recovered: Recovered,
        draw: Callable[[], int],
        elsewhere: Callable[[], int],
        proven: Callable[[bytes], bool],
        roster: Roster,
        paces: Paces,
        in_check: Callable[[], Mapping[bytes, int]],
        on_skipped: Callable[[OpenLease], None],
        on_freed: Callable[[], None],
    ) -> None:
        per_request = config.lease.groups_per_request
        self.book = LeaseBook(
            LeaseRules(
                groups_per_update=config.learner.groups_per_update,
                staleness=config.staleness,
                group_size=config.sampling.group_size,
                seconds=config.lease.seconds,
                per_node=per_request * REQUESTS_A_NODE_MAY_HOLD,
                updates=config.run.updates,
            ),
            secret=recovered.secret,
            new_id=lambda: secrets.token_bytes(16),
            version=recovered.version or 0,
            draw=draw,
            returned=recovered.returned,
            open_leases=recovered.open_leases,
        )
        self.published = set(recovered.published_versions)
        self.newest: int | None = max(self.published, default=None)
        self._run_id = config.run.id
        self._per_request = per_request
        self._identity = identity
        self._ledger = ledger
        self._scorers = scorers
        self._sampling = sampling
        self._elsewhere = elsewhere
        self._proven = proven
        self._roster = roster
        self._in_check = in_check
        share = config.lease.newcomer_share
        self._newcomers: float = max(1, int(share * config.learner.groups_per_update))
        if share == 1:
            self._newcomers = float("inf")
        self._paces = paces
        self._on_skipped = on_skipped
        self._on_freed = on_freed
        self._waiters: dict[bytes, _Waiter] = {}
        self._complete = False
        self._mixture = config.mixture
        self._bad_prompts: Counter[int] = Counter()  # in a row, by task
        self._why_bad = ""

    @property
    def waiting(self) -> int:
        """Nodes that wait for work."""
        return len(self._waiters)

    async def request(self, node: bytes, request: LeaseRequest, now: float) -> LeaseGrant:
        """Leases for a node, held back up to `wait_s` seconds while there is no work for it."""
        # a node cannot be ahead of what was published, whatever it says
        version = min(request.version, self.newest or 0)
        waiter = _Waiter(node, version, min(request.groups, self._per_request))
        self._roster.asked(node, request.groups, now)
        older = self._waiters.pop(node, None)
        if older is not None:
            older.done.set()
        envelopes: list[bytes] = []
        if not self._complete:
            self._waiters[node] = waiter
            try:
                self.share_out(now)
                with trio.move_on_after(request.wait_s):
                    await waiter.done.wait()
                envelopes = await self._issue(waiter.granted)
            except BaseException:
                self.book.release([lease.lease_id for lease in waiter.granted], node)
                self._on_freed()
                raise
            finally:
                if self._waiters.get(node) is waiter:
                    del self._waiters[node]
        over = self._complete and not envelopes
        return LeaseGrant(
            leases=tuple(envelopes), verdicts=(), state="complete" if over else "open"
        )

    def share_out(self, now: float) -> None:
        """Give the work there is to the nodes that wait for it."""
        if not self._waiters or not self.book.has_work(self._elsewhere()):
            return
        waiting = [one for one in self._waiters.values() if self._roster.allows(one.node)]
        for_newcomers = self._newcomers - self._in_newcomers_hands()
        for number, waiter in enumerate(waiting):
            elsewhere, node = self._elsewhere(), waiter.node
            share = -(-self.book.work(waiter.version, elsewhere) // (len(waiting) - number))
            newcomer = not self._proven(node)
            most = for_newcomers if newcomer else float("inf")
            most = min(waiter.groups, share, self._paces.limit(node) - self.book.held[node], most)
            waiter.granted = self.book.grant(
                node, waiter.version, int(max(0, most)), elsewhere=elsewhere, now=now
            )
            for_newcomers -= newcomer * len(waiter.granted)
            if waiter.granted:
                del self._waiters[waiter.node]
                waiter.done.set()

    def _in_newcomers_hands(self) -> int:
        in_hand = Counter(self._in_check())
        in_hand.update(self.book.held)
        return sum(count for node, count in in_hand.items() if not self._proven(node))

    def answered(self, lease: OpenLease, now: float) -> None:
        """A lease was answered well, and closed: so fast is its node."""
        self._paces.answered(lease.node, lease.issued_at, now)
        self._roster.answered(
            lease.node,
            rollouts=lease.group_size,
            held=self.book.held[lease.node] + 1,
            issued_at=lease.issued_at,
            now=now,
        )

    async def release(self, lease_ids: Sequence[bytes], node: bytes) -> int:
        """A node will not answer these of its leases, or has spoilt them. How many were open."""
        return await self._take_back(self.book.release(lease_ids, node))

    async def leave(self, node: bytes) -> int:
        """A node is gone: its leases go to others, and a request of it waits no longer."""
        return await self._take_back(self.shut_out(node))

    async def expire(self, now: float) -> list[OpenLease]:
        """Take back the leases whose time is up."""
        expired = self.book.expire(now)
        await self._take_back(expired)
        return expired

    async def _take_back(self, released: Sequence[OpenLease]) -> int:
        if released:
            await self._ledger.release_leases(released)
            self._on_freed()
        return len(released)

    def shut_out(self, node: bytes) -> list[OpenLease]:
        """A node gets nothing any more; its leases, now closed, are for the ledger to release."""
        waiter = self._waiters.pop(node, None)
        if waiter is not None:
            waiter.done.set()
        return self.book.evict(node)

    def publish(self, version: int) -> None:
        """Nodes can have this version now."""
        self.published.add(version)
        self.newest = max(version, self.newest or 0)

    def complete(self) -> None:
        """The run is over: nobody needs to wait or ask any more."""
        self._complete = True
        for waiter in self._waiters.values():
            waiter.done.set()
        self._waiters.clear()

    async def _issue(self, granted: Sequence[OpenLease]) -> list[bytes]:
        """Sign leases, after writing them down."""
        prompts: list[tuple[OpenLease, MadePrompt]] = []
        for split in ("train", "heldout"):
            some = [lease for lease in granted if lease.split == split]
            if some:
                made = await self._scorers.orders(split, [lease.index for lease in some])
                for lease, prompt in zip(some, made, strict=True):
                    if isinstance(prompt, str):
                        await self._skip(lease, prompt)
                    else:
                        prompts.append((lease, prompt))
        if prompts:
            for lease, _ in prompts:
                del self._bad_prompts[self._mixture.task_of(lease.split, lease.index)]
                trace = {"trace": lease.lease_id.hex(), "node": peer_id_of(lease.node)}
                log.debug("leased", extra=trace)
            await self._ledger.add_leases([lease for lease, _ in prompts])
        return [self._sign(lease, prompt) for lease, prompt in prompts]

    def _sign(self, lease: OpenLease, prompt: MadePrompt) -> bytes:
        return seal(
            self._identity,
            Lease(
                run_id=self._run_id,
                lease_id=lease.lease_id,
                node=lease.node,
                prompt=pack_tokens(prompt.tokens),
                group_size=lease.group_size,
                seed=lease.seed,
                sampling=self._sampling,
                min_version=lease.min_version,
                max_version=lease.max_version,
                issued_at=lease.issued_at,
                expires_at=lease.expires_at,
                turns=prompt.turns,
            ),
        )

    async def _skip(self, lease: OpenLease, why: str) -> None:
        """Pass over a prompt that cannot be made; many in a row are the operator's to mend."""
        if self.book.get(lease.lease_id) is None:  # its node was shut out in the meantime
            return
        self.book.answer(lease.lease_id)
        self._on_skipped(lease)
        try:
            self._bad_prompts[self._mixture.task_of(lease.split, lease.index)] += 1
        except LookupError:  # of a task that was taken out of run.toml, and is leased no more
            return
        self._why_bad = why
        await self._ledger.record_event(
            "prompt_skipped", split=lease.split, index=lease.index, why=why
        )

    def check_prompts(self) -> None:
        """Raises ConfigError once a task has failed to make many prompts in a row."""
        most = max(self._bad_prompts.values(), default=0)
        if most >= _MOST_BAD_PROMPTS:
            raise ConfigError(
                f"{most} prompts of a task in a row could not be made. {self._why_bad}",
                fix="Mend the section [task] or [[tasks]] of run.toml.",
            )
