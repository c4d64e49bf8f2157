"""The live screen at any size: nothing is cut off that matters, nothing runs over, no controls."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from echo_node.limits.rules import Reason
from echo_node.screen.draw import Screen
from echo_node.screen.facts import facts, headline
from echo_node.snapshot import LogLine, Snapshot

NOW = 1_780_000_000.0


def snapshot(**fields: object) -> Snapshot:
    usual: dict[str, object] = {
        "state": "working", "step": "working", "now": NOW, "started_at": NOW - 7500, "pid": 4711,
        "folder": "/home/v/.local/share/echo-p2p", "node": "12D3KooW" + "x" * 44, "run": "sums",
        "task": "adding numbers", "engine": "torch on cpu, float32", "version": 41, "lag": 1,
        "rollouts_per_s": 12.3, "tokens_per_s": 456.7, "groups": 90, "accepted": 88,
        "rejected": {"stale": 1, "audit_margin": 2}, "unsent": 1, "rollouts": 1440,
        "tokens": 123_456, "credit": 110_000, "peers": 3, "sent_bytes": 12_000_000,
        "received_bytes": 345_000_000, "sent_per_s": 1.5e6, "received_per_s": 2e3,
        "data_today": 357_000_000, "data_this_month": 9_000_000_000, "ram_bytes": 800_000_000,
        "cpu_temperature": 61.0, "gpu_temperature": 70.0, "gpu_load": 97.0,
        "limits": ("upload 20mbit", "hours mon-fri 19:00-07:00"),
    }  # fmt: skip
    return Snapshot(**{**usual, **fields})  # type: ignore[arg-type]


def lines(count: int) -> list[LogLine]:
    return [
        LogLine(number=n, at=NOW, event="note", text=f"event {n} " + "word " * (n % 30))
        for n in range(count)
    ]


def drawn(screen: Screen, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    return [line.plain for line in screen.draw(console, width, height)]


def test_at_80x24_everything_is_there() -> None:
    shown = drawn(Screen(snapshot(), "fetching version 42: 50% of 1.0 MB", lines(40)), 80, 24)
    assert len(shown) == 24
    text = "\n".join(shown)
    for wanted in (
        "Working.", "sums (adding numbers), for 2 h 5 min", "version 41, 1 behind the newest",
        "457 tokens/s", "88 accepted, rejected: audit_margin 2, stale 1, 1 to hand in",
        "110,000 tokens accepted since the start", "3 other nodes, up 1.5 MB/s, down 2.0 kB/s",
        "fetching version 42",
        "processor 61 °C, graphics card 97% 70 °C", "upload 20mbit, hours mon-fri 19:00-07:00",
        "process 4711", "event 39", "Ctrl-C",
    ):  # fmt: skip
        assert wanted in text, wanted


@pytest.mark.parametrize(("width", "height"), [(40, 24), (60, 15), (200, 60), (20, 8), (80, 4)])
def test_at_other_sizes_the_state_stays_and_nothing_runs_over(width: int, height: int) -> None:
    paused = snapshot(
        state="paused", until=NOW + 3600, reasons=(Reason("hours", "outside of your hours", None),)
    )
    shown = drawn(Screen(paused, "", lines(40)), width, height)
    assert len(shown) == height
    assert max(map(len, shown)) <= width
    assert "Paused until" in shown[0] or "Paused" in shown[0]


@given(st.integers(12, 150), st.integers(1, 50), st.integers(0, 60), st.text(max_size=300))
def test_no_size_and_no_text_break_it(width: int, height: int, count: int, text: str) -> None:
    state = snapshot(task=text, limits=(text,))
    screen = Screen(state, "", [*lines(count), LogLine(number=0, at=NOW, event="note", text="x")])
    shown = drawn(screen, width, height)
    assert len(shown) == height
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for line in shown for one in line)


def test_before_the_first_snapshot() -> None:
    shown = drawn(Screen(None, "", lines(1)), 80, 24)
    assert shown[0] == "echo-p2p: starting ..."
    assert len(shown) == 24


def test_each_state_is_a_sentence() -> None:
    reasons = (Reason("battery", "on battery"), Reason("asked", "you asked for it"))
    said = {
        state: headline(snapshot(state=state, step="greeting the hub", reasons=reasons))
        for state in ("starting", "working", "standby", "away", "paused", "leaving")
    }
    assert said == {
        "starting": "Starting: greeting the hub.",
        "working": "Working.",
        "standby": "On standby: .",
        "away": "Waiting for the hub (greeting the hub).",
        "paused": "Paused: on battery; you asked for it.",
        "leaving": "Leaving: handing in what is running.",
    }
    waits = snapshot(state="standby", until=NOW + 3600, standby="others work")
    assert headline(waits).startswith("On standby until ")
    assert headline(waits).endswith("(in 1 h): others work.")
    assert "(in 1 h)" in headline(snapshot(state="paused", until=NOW + 3600, reasons=reasons))


def test_what_is_unknown_is_left_out() -> None:
    bare = dict(facts(snapshot(cpu_temperature=None, gpu_temperature=None, gpu_load=None)))
    assert bare["machine"] == "800 MB of memory"
    early = dict(facts(snapshot(version=None, lag=None, limits=(), rejected={}, unsent=0)))
    assert early["policy"] == "no version yet"
    assert early["groups"] == "88 accepted, rejected: none"
    assert "echo-node limits" in early["limits"]
