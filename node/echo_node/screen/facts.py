"""A snapshot in words: what `status` prints and the live screen shows. Pure."""

from __future__ import annotations

import time
from zoneinfo import ZoneInfo

from echo_node.limits.amounts import format_duration, format_size
from echo_node.snapshot import Snapshot
from echo_node.words import clean


def headline(snapshot: Snapshot) -> str:
    """What it does now, and if it is paused why and until when."""
    match snapshot.state:
        case "paused":
            why = clean("; ".join(reason.sentence for reason in snapshot.reasons))
            return f"Paused{until(snapshot)}: {why}."
        case "working":
            return "Working."
        case "standby":
            return f"On standby{until(snapshot)}: {clean(snapshot.standby)}."
        case "away":
            return f"Waiting for the hub ({snapshot.step})."
        case "leaving":
            return "Leaving: handing in what is running."
    return f"Starting: {snapshot.step}." if snapshot.step else "Starting."


def until(snapshot: Snapshot) -> str:
    """` until 19:00 (in 2 h 5 min)`; empty if nobody can know."""
    if snapshot.until is None:
        return ""
    left = format_duration(snapshot.until - snapshot.now)
    return f" until {clock_time(snapshot.until, snapshot.now)} (in {left})"


def clock_time(moment: float, now: float, zone: ZoneInfo | None = None) -> str:
    """The time of day; the date too, if it is not within a day."""
    from echo_node.limits.hours import local_time

    shape = "%a %d %b %H:%M" if abs(moment - now) > 20 * 3600 else "%H:%M"
    return local_time(moment, zone).strftime(shape)


def facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Labels and values, in the order of their importance."""
    found = [
        ("run", _run(snapshot)),
        ("policy", _policy(snapshot)),
        ("speed", _speed(snapshot)),
        ("groups", _groups(snapshot)),
        ("credit", _credit(snapshot)),
        ("network", _network(snapshot)),
        ("data", _data(snapshot)),
        ("machine", _machine(snapshot)),
        ("limits", ", ".join(snapshot.limits) or "the defaults (echo-node limits)"),
        ("node", f"{snapshot.node}, process {snapshot.pid}"),
    ]
    return [(label, clean(value)) for label, value in found]


def _run(snapshot: Snapshot) -> str:
    task = f" ({snapshot.task})" if snapshot.task else ""
    return f"{snapshot.run}{task}, for {format_duration(snapshot.now - snapshot.started_at)}"


def _policy(snapshot: Snapshot) -> str:
    if snapshot.version is None:
        return "no version yet"
    lag = "" if snapshot.lag is None else f", {snapshot.lag} behind the newest"
    engine = f" | {snapshot.engine}" if snapshot.engine else ""
    return f"version {snapshot.version}{lag}{engine}"


def _speed(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.tokens_per_s:,.0f} tokens/s, {snapshot.rollouts_per_s:.1f} rollouts/s | "
        f"{snapshot.rollouts:,} rollouts, {snapshot.tokens:,} tokens"
    )


def _groups(snapshot: Snapshot) -> str:
    refused = ", ".join(f"{code} {n}" for code, n in sorted(snapshot.rejected.items()))
    unsent = f", {snapshot.unsent} to hand in" if snapshot.unsent else ""
    return f"{snapshot.accepted:,} accepted, rejected: {refused or 'none'}{unsent}"


def _credit(snapshot: Snapshot) -> str:
    ledger = snapshot.ledger_credit
    first = "" if ledger is None else f"{ledger:,} tokens by the hub's ledger | "
    return f"{first}{snapshot.credit:,} tokens accepted since the start"


def _network(snapshot: Snapshot) -> str:
    up, down = format_size(snapshot.sent_per_s), format_size(snapshot.received_per_s)
    peers = "1 other node" if snapshot.peers == 1 else f"{snapshot.peers} other nodes"
    return f"{peers}, up {up}/s, down {down}/s"


def _data(snapshot: Snapshot) -> str:
    return (
        f"up {format_size(snapshot.sent_bytes)}, down {format_size(snapshot.received_bytes)} | "
        f"today {format_size(snapshot.data_today)}, "
        f"this month {format_size(snapshot.data_this_month)}"
    )


def _machine(snapshot: Snapshot) -> str:
    parts = [f"{format_size(snapshot.ram_bytes)} of memory"]
    if snapshot.cpu_temperature is not None:
        parts.append(f"processor {snapshot.cpu_temperature:.0f} °C")
    if snapshot.gpu_load is not None or snapshot.gpu_temperature is not None:
        load = "" if snapshot.gpu_load is None else f" {snapshot.gpu_load:.0f}%"
        warm = "" if snapshot.gpu_temperature is None else f" {snapshot.gpu_temperature:.0f} °C"
        parts.append(f"graphics card{load}{warm}")
    return ", ".join(parts)


def time_of(moment: float) -> str:
    """`19:00:05`, on this computer's clock."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
