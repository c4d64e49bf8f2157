"""What a volunteer reads, and what a program reads; and the small pure parts of a node."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from echo_node import console
from echo_node.chronicle import WORKING, Chronicle
from echo_node.console import describe, open_console
from echo_node.downloads import fetch_deadline_s
from echo_node.events import (
    Engine,
    Event,
    Fetched,
    Joined,
    Note,
    Paused,
    Planned,
    Progress,
    Step,
    Still,
    Summary,
    Trouble,
    Version,
)
from echo_node.meter import Meter
from echo_node.outbox import retry_delay_s
from echo_node.paths import node_folder
from echo_node.screen.live import open_screen
from echo_node.session import reconnect_delay_s

COUNTS = {
    "groups": 4,
    "accepted": 2,
    "rejected": {"stale": 1},
    "unsent": 1,
    "rollouts": 32,
    "tokens": 900,
    "bytes_from_hub": 1_234_567,
    "bytes_from_peers": 999,
    "bytes_sent": 0,
    "bytes_saved": 0,
}


def fetched(**fields: object) -> Fetched:
    usual = {
        "what": "version 7",
        "done_bytes": 500_000,
        "total_bytes": 1_000_000,
        "from_hub_bytes": 100_000,
        "from_peers_bytes": 300_000,
        "resumed_bytes": 100_000,
        "bytes_per_s": 100_000,
        "elapsed_s": 4.0,
        "left_s": 5.0,
    }
    return Fetched(**{**usual, **fields})  # type: ignore[arg-type]


EVENTS: list[tuple[Event, str]] = [
    (Step(step="greeting the hub"), "greeting the hub ..."),
    (Still(step="loading", elapsed_s=12.2), "loading, for 12 s ..."),
    (Joined(run="r", task="sums", node="N", hub="H"), "Joined run r (sums) as N."),
    (
        Joined(run="r", task="sums", node="N", hub="H", max_upload="20mbit"),
        "Joined run r (sums) as N. Limits: upload 20mbit, download unlimited.",
    ),
    (
        Engine(name="torch", device="cpu", dtype="float32", max_sequences=64),
        "Engine: torch on cpu, float32.",
    ),
    (
        Planned(
            sentence="Plan: torch.",
            engine="torch",
            place="the CPU",
            dtype="float32",
            context=8,
            max_sequences=1,
            needs=1,
            may_have=2,
        ),
        "Plan: torch.",
    ),
    (
        fetched(),
        "fetching version 7: 50% of 1.0 MB, 100 kB/s, 5 s left, 75% from nodes; "
        "resumed, 100 kB were here already",
    ),
    (
        fetched(
            what="the base model",
            done_bytes=1_000_000,
            from_hub_bytes=600_000,
            from_peers_bytes=0,
            resumed_bytes=0,
            elapsed_s=6.04,
            left_s=0.0,
        ),
        "fetched the base model: 1.0 MB in 6.0 s, 0% from nodes",
    ),
    (Version(version=3), "version 3 is active"),
    (
        Progress(
            version=3,
            rollouts_per_s=12.34,
            tokens_per_s=456.7,
            running=5,
            running_tokens=678,
            **COUNTS,
        ),
        "version 3 | 12.3 rollouts/s, 457 tokens/s, 5 answers under way with "
        "678 tokens | 2 groups accepted, rejected: stale 1, "
        "1 to hand in | received 1.2 MB from the hub, 999 B from nodes; sent 0 B",
    ),
    (Trouble(message="Away.", retry_s=2.0), "Away. Trying again in 2 s."),
    (Trouble(message="Odd."), "Odd."),
    (Note(message="[bold]x"), "[bold]x"),
    (
        Summary(reason="complete", wall_s=61.2, **{**COUNTS, "rejected": {}, "unsent": 0}),
        "The run is complete. Thank you! 61 s: 2 groups accepted, rejected: none | "
        "received 1.2 MB from the hub, 999 B from nodes; sent 0 B",
    ),
]


@pytest.mark.parametrize(("event", "sentence"), EVENTS)
def test_every_event_is_a_sentence(event: Event, sentence: str) -> None:
    assert describe(event) == sentence


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with open_console(json_lines=True) as report:
        for event, _ in EVENTS:
            report(event)
    out = capsys.readouterr()
    lines = [json.loads(line) for line in out.out.splitlines()]
    assert [line["event"] for line in lines] == [
        "step", "still", "joined", "joined", "engine", "planned", "fetched", "fetched", "version",
        "progress", "trouble", "trouble", "note", "summary",
    ]  # fmt: skip
    assert lines[9]["rejected"] == {"stale": 1}
    assert out.err == ""


def test_plain_lines_and_a_live_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        monkeypatch.setenv("COLUMNS", "300")
        with open_console(json_lines=False) as report:
            for event, _ in EVENTS:
                report(event)
        shown = capsys.readouterr().err
        assert "Joined run r" in shown
        assert "[bold]x" in shown  # never taken for markup
        assert "Thank you!" in shown


def test_the_live_screen_shows_events_a_download_and_last_words() -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=80, height=24)
    with open_screen(terminal, describe, console._is_shown) as screen:
        screen(Trouble(message="Away.", retry_s=2.0))
        screen(fetched(elapsed_s=0.9))
        assert "fetching" not in out.getvalue()
        screen(fetched(elapsed_s=1.1))
        assert "fetching version 7: 50% of 1.0 MB" in out.getvalue()
        logging.getLogger("echo_node").warning("odd %s", "thing")
        out.truncate(0)
        screen(fetched(done_bytes=1_000_000))
        shown = out.getvalue()
        assert "fetching" not in shown
        assert "Away. Trying again in 2 s." in shown
        assert "odd thing" in shown
        screen(EVENTS[-1][0])
        out.truncate(0)
    assert "Thank you!" in out.getvalue().split("\x1b[?1049l")[1]


def test_what_came_over_the_network_is_no_command_to_the_terminal() -> None:
    assert describe(Note(message="a\x1b[2Jb\nc\u202ed")) == "a\ufffd[2Jb\ufffdc\ufffdd"


def test_plain_lines_tell_of_long_downloads_now_and_then_and_of_their_end() -> None:
    out = io.StringIO()
    plain = console._PlainLines(Console(file=out, width=300))
    plain(fetched(done_bytes=1_000_000, elapsed_s=0.9))
    assert out.getvalue() == ""
    for _ in range(3):
        plain(fetched())
    plain(fetched(done_bytes=1_000_000))
    shown = [line.partition(" ")[2] for line in out.getvalue().splitlines()]
    assert [line.split(":")[0] for line in shown] == ["fetching version 7", "fetched version 7"]


def test_a_step_that_takes_long_is_told_of_and_no_other_time_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("echo_node.chronicle.time.monotonic", lambda: now)
    told: list[Event] = []
    chronicle = Chronicle(told.append)
    assert chronicle.still() is None
    chronicle(Step(step="loading"))
    assert chronicle.still() is None
    now += 3
    assert chronicle.still() == Still(step="loading", elapsed_s=3.0)
    for over in (Step(step=WORKING), Trouble(message="Away."), Paused(codes=[], message="x")):
        chronicle(Step(step="loading"))
        chronicle(over)
        now += 60
        assert chronicle.still() is None
    chronicle(Still(step="loading", elapsed_s=3.0))
    assert "still" not in {line.event for line in chronicle.lines()}


def test_plain_lines_tell_of_a_long_step_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, out = 100.0, io.StringIO()
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    lines = console._PlainLines(Console(file=out, width=200))
    lines(Step(step="loading"))
    for elapsed in range(1, 26):
        now = 100.0 + elapsed
        lines(Still(step="loading", elapsed_s=float(elapsed)))
    said = [line.partition(" ")[2] for line in out.getvalue().splitlines()]
    assert said == ["loading ...", "loading, for 10 s ...", "loading, for 20 s ..."]


def test_downloads_are_told_of_sparingly() -> None:
    told: list[Event] = []
    report = console._sparing(told.append)
    for done in range(0, 1001):
        report(fetched(done_bytes=done, total_bytes=1000))
    assert len(told) < 20
    assert isinstance(told[-1], Fetched)
    assert told[-1].done_bytes == 1000


def test_a_reader_that_is_gone_does_not_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True) as out:
        monkeypatch.setattr(sys, "stdout", out)
        with open_console(json_lines=True) as report:
            report(Note(message="x"))
            report(Note(message="y"))


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHO_NODE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert node_folder().root == tmp_path / "echo-p2p"
    monkeypatch.setenv("ECHO_NODE_HOME", str(tmp_path / "here"))
    assert node_folder().root == tmp_path / "here"
    assert node_folder(tmp_path / "chosen").identity == tmp_path / "chosen" / "identity.pem"


def test_rates_are_over_the_last_readings() -> None:
    meter = Meter(100.0)
    assert meter.rates(102.0, 10, 100) == (5.0, 50.0)
    for second in range(104, 140, 2):
        rates = meter.rates(second, 10, 100)
    assert rates == (0.0, 0.0)
    assert meter.elapsed(130.0) == 30.0


def test_pauses_and_deadlines_grow_and_end() -> None:
    pauses = [reconnect_delay_s(failures, 0.0) for failures in range(1, 12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 30.0)
    assert reconnect_delay_s(3, 0.99) <= 2 * reconnect_delay_s(3, 0.0)
    assert reconnect_delay_s(10_000, 0.5) <= 60.0
    assert retry_delay_s(1) < retry_delay_s(2) <= retry_delay_s(50) == 30.0
    assert 60 < fetch_deadline_s(10**6) < fetch_deadline_s(10**9)
