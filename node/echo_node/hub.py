"""The hub as a node sees it: its requests, with everything it signed verified on the way in.

Promises: what is returned was signed by the hub key of the bootstrap file and is about this run;
every request has a deadline; a hub that breaks the protocol is a `NetError` or a `WireError`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from echo_p2p import PROTOCOL, __version__
from echo_p2p.artifact.manifest import Artifact, check_leads_to
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import ArtifactError, ManifestError, NetError, PeerRefusedError, WireError
from echo_p2p.identity import public_key_of
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import ask
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    MAX_CONTROL_BYTES,
    VERSIONS_PROTOCOL,
    WATCH_PROTOCOL,
    Announcement,
    Credit,
    CreditReply,
    CreditRequest,
    Done,
    Farewell,
    HandedTurn,
    Heartbeat,
    Hello,
    Introduce,
    Latest,
    Lease,
    LeaseGrant,
    LeaseRequest,
    LeaseReturn,
    Message,
    Obtained,
    Receipt,
    RunDescription,
    StandbyReply,
    StandbyRequest,
    Submit,
    SubmitReply,
    TurnReply,
    TurnRequest,
    Versions,
    VersionsRequest,
    Watch,
    WatchEvent,
    decode,
    encode,
    unpack_tokens,
)

M = TypeVar("M", bound=Message)

log = logging.getLogger(__name__)

ANSWER_S = 30.0
TURN_ANSWER_S = 60.0
"""A hub holds a `TurnRequest` for 20 s at most."""
STATISTICS_S = 5.0
SILENCE_S = 15.0
"""A hub sends a heartbeat every 5 s; after three missed ones it is gone."""
LEASE_WAIT_S = 5.0
"""How long a hub may hold a lease request. Short: stopping waits for the answer, see `Worker`."""


@dataclass(frozen=True)
class Offer:
    """A version that a hub offers as its newest, and a delta to it, if there is one."""

    adapter: Artifact
    delta: Artifact | None = None

    @property
    def version(self) -> int:
        return self.adapter.manifest.version

    @property
    def artifacts(self) -> list[Artifact]:
        return [self.adapter] if self.delta is None else [self.adapter, self.delta]

    def is_sibling(self, artifact: Artifact, kind: str) -> bool:
        """Whether an artifact is of this kind and of the same run of the same hub."""
        theirs, ours = artifact.manifest, self.adapter.manifest
        same_run = theirs.run_id == ours.run_id and artifact.key == self.adapter.key
        return same_run and theirs.kind == kind


@dataclass(frozen=True)
class Greeting:
    """What a hub says of its run, verified."""

    run: RunDescription
    base: Artifact
    newest: Offer | None
    hub_time: float


@dataclass(frozen=True)
class Grant:
    """Leases; verdicts on groups that were accepted before; and whether the run is complete."""

    leases: list[Lease]
    verdicts: list[Receipt]
    complete: bool


class Hub:
    """A connected hub."""

    def __init__(self, peer: Peer, peer_id: str, run_id: str) -> None:
        self.peer_id = peer_id
        self._peer = peer
        self._key = public_key_of(peer_id)
        self._run_id = run_id
        self._tells_standby = True

    async def versions(self) -> Versions:
        """Which protocols the hub speaks; a NetError from one too old to say."""
        return await ask(
            self._peer,
            self.peer_id,
            VERSIONS_PROTOCOL,
            VersionsRequest(),
            Versions,
            deadline_s=ANSWER_S,
        )

    async def hello(self, engine: str, *, protocol: int = PROTOCOL) -> Greeting:
        """Begin a session."""
        latest = await self._ask(
            Hello(
                protocol=protocol,
                run_id=self._run_id,
                software=f"echo-node {__version__}",
                engine=engine[:80],
                addresses=self._peer.addresses[:16],
            ),
            Latest,
        )
        run = open_envelope(latest.run, RunDescription, key=self._key).message
        if run.run_id != self._run_id:
            raise WireError(f"the hub described run {run.run_id!r}, not {self._run_id!r}.")
        base = self.artifact(latest.base, "base")
        if base.id != run.base:
            raise ManifestError("the hub's base model is not the one in its run description.")
        newest = None if latest.adapter is None else self.offer(latest.adapter, latest.delta)
        return Greeting(run, base, newest, latest.hub_time)

    def artifact(self, envelope: bytes, kind: str) -> Artifact:
        """The artifact of this run whose manifest the hub signed; ManifestError for any other."""
        artifact = Artifact.open(envelope, self._key)
        if artifact.manifest.run_id != self._run_id or artifact.manifest.kind != kind:
            raise ManifestError(f"{artifact} is no {kind} of run {self._run_id}.")
        return artifact

    def offer(self, adapter: bytes, delta: bytes | None) -> Offer:
        """A version from its envelopes. A delta that cannot be one to it is left out, and said."""
        version = self.artifact(adapter, "adapter")
        if delta is None:
            return Offer(version)
        try:
            shorter = self.artifact(delta, "delta")
            check_leads_to(shorter, version)
        except (ArtifactError, WireError) as error:
            log.warning("the delta to %s is not used: %s", version, error)
            return Offer(version)
        return Offer(version, shorter)

    async def lease(self, *, version: int, groups: int) -> Grant:
        """Ask for leases."""
        request = LeaseRequest(
            run_id=self._run_id, version=version, groups=min(groups, 1024), wait_s=LEASE_WAIT_S
        )
        grant = await self._ask(request, LeaseGrant, deadline_s=ANSWER_S + LEASE_WAIT_S)
        return Grant(
            [open_envelope(data, Lease, key=self._key).message for data in grant.leases],
            [open_envelope(data, Receipt, key=self._key).message for data in grant.verdicts],
            grant.state == "complete",
        )

    async def standby(self) -> StandbyReply:
        """Why there are no leases. A hub too old to say has no standby."""
        nothing = StandbyReply(standby=False, sentence="", until=None)
        if not self._tells_standby:
            return nothing
        try:
            return await self._ask(StandbyRequest(run_id=self._run_id), StandbyReply)
        except PeerRefusedError as error:
            log.debug("the hub does not say who is on standby: %s", error)
            self._tells_standby = False
            return nothing

    async def give_back(self, lease_ids: Sequence[bytes]) -> None:
        """Return leases that will not be answered."""
        await self._ask(LeaseReturn(run_id=self._run_id, lease_ids=tuple(lease_ids)), Done)

    async def farewell(self) -> None:
        """Leave: whatever is still leased to us goes to others."""
        await self._ask(Farewell(run_id=self._run_id), Done, deadline_s=STATISTICS_S)

    async def submit(self, envelope: bytes, lease_id: bytes) -> Receipt:
        """Hand in a submission."""
        reply = await self._ask(Submit(envelope=envelope), SubmitReply)
        receipt = open_envelope(reply.receipt, Receipt, key=self._key).message
        if receipt.run_id != self._run_id or receipt.lease_id != lease_id:
            raise WireError("the hub's receipt is for another submission.")
        return receipt

    async def turns(
        self, lease_id: bytes, turns: tuple[HandedTurn, ...]
    ) -> list[list[int] | None] | None:
        """What the hub says after these turns of a lease; None if it is still at it."""
        request = TurnRequest(run_id=self._run_id, lease_id=lease_id, turns=turns)
        reply = await self._ask(request, TurnReply, deadline_s=TURN_ANSWER_S)
        if not reply.ready:
            return None
        if len(reply.replies) != len(turns):
            raise WireError(f"the hub answered {len(reply.replies)} of {len(turns)} turns.")
        return [None if one is None else unpack_tokens(one) for one in reply.replies]

    async def introduce(self, voucher: bytes) -> None:
        """Hand in the voucher of the person whose machine this is."""
        await self._ask(Introduce(run_id=self._run_id, voucher=voucher), Done)

    async def credit(self) -> tuple[bytes, Credit]:
        """What we gave so far: the hub's statement, its envelope and what it says."""
        reply = await self._ask(CreditRequest(run_id=self._run_id), CreditReply)
        credit = open_envelope(reply.credit, Credit, key=self._key).message
        if credit.run_id != self._run_id:
            raise WireError(f"the hub states credit for run {credit.run_id!r}.")
        return reply.credit, credit

    async def obtained(self, obtained: Obtained) -> None:
        """Say that an artifact is complete here."""
        await self._ask(obtained, Done, deadline_s=STATISTICS_S)

    async def watch(
        self, on_offer: Callable[[Offer], None], on_time: Callable[[float], None]
    ) -> None:
        """Report new versions and the hub's clock until the hub falls silent: a NetError."""
        async with self._peer.stream(self.peer_id, WATCH_PROTOCOL, deadline_s=ANSWER_S) as stream:
            await stream.send(encode(Watch(run_id=self._run_id)))
            while True:
                frame = await stream.receive(MAX_CONTROL_BYTES, deadline_s=SILENCE_S)
                try:
                    event: WatchEvent = decode(frame, WatchEvent)  # type: ignore[arg-type]
                except WireError as error:
                    raise NetError(f"the hub's watch stream broke off: {error.message}") from error
                match event:
                    case Announcement():
                        on_offer(self.offer(event.adapter, event.delta))
                    case Heartbeat():
                        on_time(event.hub_time)
                    case _:
                        raise PeerRefusedError(
                            f"the hub refused to be watched ({event.code}): {event.sentence}",
                            code=event.code,
                        )

    async def _ask(self, message: Message, reply: type[M], *, deadline_s: float = ANSWER_S) -> M:
        return await ask(
            self._peer, self.peer_id, CONTROL_PROTOCOL, message, reply, deadline_s=deadline_s
        )
