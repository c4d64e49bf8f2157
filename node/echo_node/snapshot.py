"""How a node stands at a moment: what `echo-node status` prints and the live screen draws."""

from __future__ import annotations

from typing import Literal

import msgspec

from echo_node.limits.rules import Reason

State = Literal["starting", "working", "standby", "away", "paused", "leaving"]
"""`away`: the hub cannot be reached, and is tried again; `standby`: the hub lets others work, and
`standby` says why."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counts are since the node started; times are Unix seconds; rates are a second, over the last
    seconds; temperatures are degrees Celsius; None is unknown.

    `lag` is how many versions the newest known one is ahead of the active one. `credit` counts the
    tokens of groups that the hub accepted and has not found unfit since; `ledger_credit` is what
    the hub's ledger said last, of all this node ever did in the run, and decides. `limits` are
    those in force that say something, as `NAME VALUE`.
    """

    state: State
    step: str
    reasons: tuple[Reason, ...] = ()
    standby: str = ""
    until: float | None = None
    now: float
    started_at: float
    pid: int
    folder: str
    node: str
    run: str
    task: str = ""
    engine: str = ""
    version: int | None = None
    lag: int | None = None
    rollouts_per_s: float = 0.0
    tokens_per_s: float = 0.0
    groups: int = 0
    accepted: int = 0
    rejected: dict[str, int] = {}
    unsent: int = 0
    rollouts: int = 0
    tokens: int = 0
    credit: int = 0
    ledger_credit: int | None = None
    peers: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_per_s: float = 0.0
    received_per_s: float = 0.0
    data_today: int = 0
    data_this_month: int = 0
    ram_bytes: int = 0
    cpu_temperature: float | None = None
    gpu_temperature: float | None = None
    gpu_load: float | None = None
    limits: tuple[str, ...] = ()


class LogLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of what a node said. `number` rises by one; `event` is the kind of event."""

    number: int
    at: float
    event: str
    text: str
