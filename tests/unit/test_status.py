"""`echo-hub status`: facts as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from echo_hub.commands.status import render_status, rows_of

NOW = 1_700_000_000.0
FACTS = {
    "run": "my-run",
    "version": 7,
    "last_update_at": NOW - 200.0,
    "last_metrics": {"reward_mean": 0.51234567, "lag_max": 1.0, "tokens": 10240.0, "loss": -1.5e-7},
    "heldout_reward": {"0": 0.35, "7": 0.99951, "9": 1.5},
    "rollouts_rejected": {"stale": 16},
    "lag_histogram": {},
    "published_version": None,
}


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_utc")
def test_times_metrics_and_rewards_are_readable() -> None:
    assert rows_of(FACTS, now=NOW) == [
        ("run", "my-run"),
        ("version", "7"),
        ("last update", "2023-11-14 22:10:00 (3 min ago)"),
        ("last metrics", "reward_mean 0.512, lag_max 1, tokens 10240, loss -1.5e-07"),
        ("held-out reward", "v0 .350, v7 1.000, v9 1.500"),
        ("rollouts rejected", "stale 16"),
        ("lag histogram", "-"),
        ("published version", "-"),
    ]


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (86400 * 9, "9 d")],
)
def test_ages(seconds: float, age: str) -> None:
    ((_, shown),) = rows_of({"last_update_at": NOW - seconds}, now=NOW)
    assert shown.endswith(f" ({age} ago)")


def test_the_table_holds_them(capsys: pytest.CaptureFixture[str]) -> None:
    render_status(FACTS)
    assert "held-out reward" in capsys.readouterr().out
