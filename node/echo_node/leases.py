"""What to do with the leases a node holds. Pure: no clock, no network, no engine.

The rules, for leases held while version `active` is loaded and `newest` is on disk:

- an expired lease is dropped; one that no version still to come here can answer is given back;
- leases that `newest` is too new for are begun first, by `active`;
- then `newest` becomes active, and leases it may answer are begun, those that expire first first;
- leases for a version yet to come wait for it;
- a lease is begun as soon as there is room for one of its answers, whatever else is running: the
  others follow as places get free. What was begun is not touched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echo_p2p.errors import WireError
from echo_p2p.wire import Lease, RunDescription, unpack_tokens


@dataclass(frozen=True)
class Plan:
    """The next step: make `version` active if it is not, then begin `batch`.

    `kept` are held on, `expired` are forgotten, `hopeless` go back to the hub.
    """

    version: int | None
    batch: tuple[Lease, ...] = ()
    kept: tuple[Lease, ...] = ()
    expired: tuple[Lease, ...] = ()
    hopeless: tuple[Lease, ...] = ()


def plan(
    held: Sequence[Lease],
    *,
    active: int | None,
    newest: int | None,
    now: float,
    room: int,
) -> Plan:
    """Decide the next step.

    Args:
        active: version the engine has; None before the first.
        newest: newest version on disk, never older than `active`; None before the first.
        now: Unix seconds by the hub's clock.
        room: answers that could be begun now, beside those that are running.
    """
    expired = tuple(lease for lease in held if lease.expires_at <= now)
    live = [lease for lease in held if lease.expires_at > now]
    if newest is None:
        return Plan(None, kept=tuple(live), expired=expired)
    possible = {newest} if active is None else {active, newest}
    hopeless = tuple(lease for lease in live if not _has_a_chance(lease, possible, newest))
    live = [lease for lease in live if _has_a_chance(lease, possible, newest)]
    version = newest
    candidates = [lease for lease in live if _allows(lease, newest)]
    if active is not None and active < newest:
        urgent = [lease for lease in live if not _allows(lease, newest) and _allows(lease, active)]
        if urgent:
            version, candidates = active, urgent
    batch = _take(candidates, room)
    taken = {lease.lease_id for lease in batch}
    kept = tuple(lease for lease in live if lease.lease_id not in taken)
    return Plan(version, batch, kept, expired, hopeless)


def _allows(lease: Lease, version: int) -> bool:
    return lease.min_version <= version and (
        lease.max_version is None or version <= lease.max_version
    )


def _has_a_chance(lease: Lease, possible: set[int], newest: int) -> bool:
    later = lease.max_version is None or lease.max_version > newest
    return later or any(_allows(lease, version) for version in possible)


def _take(candidates: Sequence[Lease], room: int) -> tuple[Lease, ...]:
    batch: list[Lease] = []
    for lease in sorted(candidates, key=lambda lease: lease.expires_at):
        if room < 1:
            break
        batch.append(lease)
        room -= lease.group_size
    return tuple(batch)


def groups_wanted(held: Sequence[Lease], *, group_size: int, capacity: int) -> int:
    """Leases to ask for, so that there is one for each place that the engine may get free."""
    lacking = capacity - sum(lease.group_size for lease in held)
    return 0 if lacking <= 0 else -(-lacking // group_size)


def fault_of(lease: Lease, run: RunDescription, *, node: bytes, now: float) -> str:
    """Why a node must not work on a lease its hub signed; empty if there is no reason."""
    try:
        prompt = unpack_tokens(lease.prompt)
    except WireError as error:
        return error.message
    longest = len(prompt) + lease.sampling.max_new_tokens
    environment = lease.turns.environment if lease.turns else ""
    faults = (
        (lease.run_id != run.run_id, f"it is of run {lease.run_id}"),
        (lease.node != node, "it is another node's"),
        (lease.expires_at <= now, f"it expired {now - lease.expires_at:.0f} s ago"),
        (lease.group_size > run.group_size, f"it wants {lease.group_size} answers"),
        (not prompt, "its prompt is empty"),
        (longest > run.context, f"prompt and answer may have {longest} tokens"),
        (max(prompt, default=0) >= run.vocab_size, "its prompt is outside the vocabulary"),
        (
            environment not in ("", *run.environments),
            f"its environment {environment} is none of the run's",
        ),
        (
            lease.max_version is not None and lease.max_version < lease.min_version,
            "no version fits it",
        ),
    )
    return next((sentence for wrong, sentence in faults if wrong), "")
