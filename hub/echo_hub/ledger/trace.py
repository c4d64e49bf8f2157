"""One group's life, from lease to update, as the ledger tells it.

A group's trace id is its lease's id in hexadecimal; rollout i of it is `<trace id>.i`. The same id
stands in the hub's log lines and in the node's receipt. The ledger keeps no time of the scoring and
of the audit, so these steps have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, select, true

from echo_hub.ledger.guard import REFUSED
from echo_hub.ledger.ledger import beside
from echo_hub.ledger.schema import events, groups, leases, updates
from echo_hub.rollouts.checks import Code
from echo_p2p.errors import ConfigError

SPOILT = "submission_rejected"
"""Kind of the event that says why an answer to an open lease was refused at the door."""
_DROPPED = "group_dropped"
_FEWEST_DIGITS = 6


@dataclass(frozen=True)
class Step:
    """Something that happened to a group: `at` in Unix seconds, None if the ledger has no time."""

    what: str
    at: float | None
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Life:
    """What became of a lease. `node` is a public key; `envelope` the answer as it was signed;
    `others` are the trace ids under which the same prompt was leased as well."""

    trace: str
    group: int | None
    node: bytes
    split: str
    prompt_index: int
    state: str
    version: int | None
    rewards: list[float] | None
    steps: list[Step]
    others: list[str]
    envelope: bytes | None


def read_life(path: Path, name: str) -> Life:
    """`life_of` in a run's ledger, whether or not it is served."""
    with beside(path) as connection:
        return life_of(connection, name)


def life_of(connection: Connection, name: str) -> Life:
    """The life of a lease by its trace id, by the beginning of one, or by `g` and the number of its
    group. ConfigError if there is none, or more than one."""
    lease = _lease_of(connection, name)
    group = connection.execute(
        select(groups).where(groups.c.lease_id == lease.lease_id)
    ).one_or_none()
    steps = [_leased(lease), *_refused(connection, lease)]
    if group is not None:
        steps += [*_group_steps(connection, group)]
    elif lease.state in ("released", "spent") and len(steps) == 1:
        sentence = "It came back unanswered: it expired, or the node gave it back."
        steps.append(Step("released", None, sentence))
    again = select(leases.c.lease_id).where(
        leases.c.split == lease.split,
        leases.c.prompt_index == lease.prompt_index,
        leases.c.lease_id != lease.lease_id,
    )
    return Life(
        trace=lease.lease_id.hex(),
        group=None if group is None else group.id,
        node=lease.node,
        split=lease.split,
        prompt_index=lease.prompt_index,
        state=lease.state if group is None else group.state,
        version=None if group is None else group.version,
        rewards=None if group is None else group.rewards,
        steps=steps,
        others=[other.hex() for other in connection.scalars(again.order_by(leases.c.issued_at))],
        envelope=None if group is None else group.envelope,
    )


def _lease_of(connection: Connection, name: str) -> Row[Any]:
    query = select(leases)
    if name[:1] == "g" and name[1:].isdecimal():
        owner = select(groups.c.lease_id).where(groups.c.id == int(name[1:]))
        query = query.where(leases.c.lease_id == owner.scalar_subquery())
    else:
        low, high = _bounds(name)
        query = query.where(leases.c.lease_id >= low, leases.c.lease_id <= high)
    found = connection.execute(query.limit(2)).all()
    if len(found) > 1:
        raise ConfigError(f"several leases begin with {name}.", fix="Write more of it.")
    if not found:
        raise ConfigError(
            f"this run's ledger has no lease {name}.",
            fix="A trace id stands in the hub's log, in its list of rollouts, and in receipts.",
        )
    return found[0]


def _bounds(name: str) -> tuple[bytes, bytes]:
    """The first and the last lease id that begin with these hexadecimal digits."""
    digits = name.lower()
    if not (_FEWEST_DIGITS <= len(digits) <= 32 and set(digits) <= set("0123456789abcdef")):
        raise ConfigError(
            f"{name!r} is no trace id.",
            fix=f"It has 32 hexadecimal digits, of which the first {_FEWEST_DIGITS} or more are "
            "enough; or write g and the number of a group.",
        )
    return bytes.fromhex(digits.ljust(32, "0")), bytes.fromhex(digits.ljust(32, "f"))


def _leased(lease: Row[Any]) -> Step:
    most = "" if lease.max_version is None else f" and {lease.max_version} at most"
    return Step(
        "leased",
        lease.issued_at,
        f"Leased: {lease.split} prompt {lease.prompt_index}, {lease.group_size} rollouts, by "
        f"version {lease.min_version} or later{most}, within "
        f"{lease.expires_at - lease.issued_at:.0f} s.",
        {
            "group_size": lease.group_size,
            "min_version": lease.min_version,
            "max_version": lease.max_version,
            "expires_at": lease.expires_at,
        },
    )


def _refused(connection: Connection, lease: Row[Any]) -> Iterator[Step]:
    """Answers to the lease that were refused at the door."""
    for row in _events(connection, SPOILT, "lease", lease.lease_id.hex(), lease.issued_at):
        why = f"Refused at the door, and the prompt leased anew: {row.detail['why']}"
        yield Step("refused", row.at, why, {"code": row.detail["code"]})


def _group_steps(connection: Connection, group: Row[Any]) -> Iterator[Step]:
    yield Step(
        "submitted",
        group.received_at,
        f"Handed in: {group.rollouts} rollouts by version {group.version}; every cheap check "
        "passed, and the receipt signed.",
        {"group": group.id, "version": group.version},
    )
    if group.rewards is not None:
        mean = sum(group.rewards) / len(group.rewards)
        yield Step("scored", None, f"Scored: mean reward {mean:.3f}.", {"rewards": group.rewards})
    if group.audited:
        yield Step("audited", None, "Audited: derived again under its version, and passed.")
    yield from _refused_updates(connection, group)
    if group.state == "received":
        yield Step("waiting", None, "Waits for its reward, and an audit if it is due for one.")
    if group.state == "scored":
        yield Step("waiting", None, "Waits for the learner.")
    if group.state == "dropped":
        yield _dropped(connection, group)
    if group.state == "consumed":
        yield from _consumed(connection, group)


def _refused_updates(connection: Connection, group: Row[Any]) -> Iterator[Step]:
    """Updates that had the group in their batch and were refused."""
    batch = func.json_each(events.c.detail, "$.groups").table_valued("value")
    query = (
        select(events.c.at, events.c.detail)
        .join(batch, true())
        .where(events.c.kind == REFUSED, events.c.at >= group.received_at)
        .where(batch.c.value == group.id)
    )
    for row in connection.execute(query.order_by(events.c.id)):
        yield Step(
            "update_refused",
            row.at,
            f"In the batch of the refused update to version {row.detail['version']}: "
            f"{row.detail['sentence']}",
            {"version": row.detail["version"], "why": row.detail["why"]},
        )


def _dropped(connection: Connection, group: Row[Any]) -> Step:
    told = list(_events(connection, _DROPPED, "group", group.id, group.received_at))
    sentence = told[-1].detail["why"] if told else _sentence(group.reason)
    at = told[-1].at if told else None
    return Step("dropped", at, f"Left out: {sentence}", {"code": group.reason})


def _sentence(code: str) -> str:
    known = {one.value: one.sentence for one in Code}
    return known.get(code, code)


def _consumed(connection: Connection, group: Row[Any]) -> Iterator[Step]:
    if group.update_no is None:
        yield Step("consumed", None, f"Counted in the evaluation of version {group.version}.")
        return
    made = connection.execute(
        select(updates).where(updates.c.version == group.update_no)
    ).one_or_none()
    lag = group.update_no - 1 - group.version
    yield Step(
        "consumed",
        None if made is None else made.committed_at,
        f"Trained on: in the update to version {group.update_no}, with a lag of {lag}.",
        {"version": group.update_no, "lag": lag},
    )
    if group.disputed:
        yield Step("disputed", None, "Disputed: its node was banned, and no audit had passed it.")
    out = connection.execute(
        select(updates.c.version, updates.c.published_at)
        .where(updates.c.version >= group.update_no, updates.c.manifest.is_not(None))
        .order_by(updates.c.version)
        .limit(1)
    ).one_or_none()
    if out is not None:
        sentence = f"Sent out: with version {out.version}."
        yield Step("published", out.published_at, sentence, {"version": out.version})


def _events(
    connection: Connection, kind: str, key: str, value: object, since: float
) -> Iterator[Any]:
    query = (
        select(events.c.at, events.c.detail)
        .where(events.c.kind == kind, events.c.at >= since)
        .where(func.json_extract(events.c.detail, f"$.{key}") == value)
        .order_by(events.c.id)
    )
    yield from connection.execute(query)
