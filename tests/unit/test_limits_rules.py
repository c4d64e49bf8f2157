"""When a node may work: the rules, the weekly hours in nights when clocks change, amounts, data."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.limits.amounts import (
    format_duration,
    format_size,
    parse_amount,
    parse_duration,
    parse_size,
)
from echo_node.limits.data import KEPT_DAYS, DataCount
from echo_node.limits.hours import DAYS, Hours, next_midnight, next_month, parse_hours
from echo_node.limits.rules import AT_ONCE, Decision, Hold, Readings, decide
from echo_node.limits.settings import Limits
from echo_p2p.errors import ConfigError

BERLIN, LORD_HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
QUIET = Readings()


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def wall(moment: float | None, zone: ZoneInfo = BERLIN) -> str:
    assert moment is not None
    return datetime.fromtimestamp(moment, zone).strftime("%a %d %H:%M:%S %z")


def test_hours_over_midnight_belong_to_the_day_they_begin_on() -> None:
    nights = Hours(["mon-fri 19:00-07:00"], BERLIN)
    assert nights.open_at(at("2026-01-03 06:59"))  # Saturday, after Friday's night began
    assert not nights.open_at(at("2026-01-03 07:00"))
    assert not nights.open_at(at("2026-01-05 06:00"))  # Monday: Sunday's has none
    assert wall(nights.next_opening(at("2026-01-03 07:00"))) == "Mon 05 19:00:00 +0100"
    sunday = Hours(["sun 22:00-06:00"], BERLIN)
    assert sunday.open_at(at("2026-01-05 05:59"))
    assert Hours(["fri-mon 00:00-24:00"], BERLIN).open_at(at("2026-01-05 12:00"))
    assert not Hours(["fri-mon 00:00-24:00"], BERLIN).open_at(at("2026-01-06 00:00"))
    assert Hours(["daily 08:00-08:00"], BERLIN).open_at(at("2026-01-06 03:00"))


def test_hours_in_the_nights_in_which_clocks_change() -> None:
    early = Hours(["sun 02:30-04:00"], BERLIN)
    leap = at(
        "2026-03-29 01:59"
    )  # 02:00 to 03:00 is left out: it begins where the wall leaps into it
    assert wall(early.next_opening(leap)) == "Sun 29 03:00:00 +0200"
    back = Hours(["sun 02:30-02:45"], BERLIN)  # comes twice
    first = back.next_opening(at("2026-10-25 01:00"))
    assert wall(first) == "Sun 25 02:30:00 +0200"
    assert wall(back.next_opening(at("2026-10-25 02:45"))) == "Sun 25 02:30:00 +0100"


SPANS = st.builds(
    lambda day, h1, m1, h2, m2: f"{DAYS[day]} {h1:02}:{m1:02}-{h2:02}:{m2:02}",
    st.integers(0, 6), st.integers(0, 23), st.sampled_from([0, 15, 30, 59]),
    st.integers(0, 23), st.sampled_from([0, 15, 30, 59]),
)  # fmt: skip
CHANGES = [
    (at("2026-03-29 00:00"), BERLIN),
    (at("2026-10-25 00:00"), BERLIN),
    (at("2026-04-05 00:00", LORD_HOWE), LORD_HOWE),  # by half an hour
    (at("2026-07-01 00:00"), BERLIN),
]


@given(
    st.lists(SPANS, min_size=1, max_size=3), st.sampled_from(CHANGES), st.integers(-3 * 1440, 1440)
)
def test_the_next_opening_is_the_first_open_minute(
    lines: list[str], change: tuple[float, ZoneInfo], minutes: int
) -> None:
    start, zone = change
    hours, now = Hours(lines, zone), start + 60 * minutes
    opening = hours.next_opening(now)
    assert opening is not None
    assert hours.open_at(opening)
    moment = now  # all spans and leaps are at whole minutes
    while not hours.open_at(moment):
        moment += 60
    assert opening == moment


@pytest.mark.parametrize(
    "text",
    ["", "mon", "mon 7:00-08:00", "noday 07:00-08:00", "mon 25:00-26:00", "mon 24:00-25:00",
     "mon 24:00-24:00", "mon 07:60-08:00", "mon- 07:00-08:00", "mon,,tue 07:00-08:00"],
)  # fmt: skip
def test_hours_that_cannot_be_read_are_said_to_be(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_hours(text)


def test_days_and_months_end_where_the_volunteer_lives() -> None:
    assert wall(next_midnight(at("2026-03-29 00:30"), BERLIN)) == "Mon 30 00:00:00 +0200"
    assert wall(next_month(at("2026-12-31 23:59"), BERLIN)) == "Fri 01 00:00:00 +0100"
    assert wall(next_month(at("2026-01-31 12:00"), BERLIN)) == "Sun 01 00:00:00 +0100"


NOON = at("2026-06-03 12:00")  # a Wednesday
CASES: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("battery", {}, {"on_battery": True}),
    ("in_use", {"only_when_idle": True}, {"idle_s": 299.0}),
    ("in_use", {"only_when_idle": True}, {"idle_s": None}),
    ("program", {"pause_for": ("game",)}, {"programs": ("game",)}),
    ("program", {"pause_for": ("game",)}, {"programs": None}),
    ("gpu_in_use", {}, {"gpu_programs": ("game",)}),
    ("cpu_warm", {}, {"cpu_temperature": 90.5}),
    ("gpu_warm", {"max_gpu_temperature": 70.0}, {"gpu_temperature": 71.0}),
    ("hours", {"hours": ("wed 13:00-14:00",)}, {}),
    ("data_day", {"data_per_day": "1GB"}, {"data_today": 10**9}),
    ("data_month", {"data_per_month": "1GB"}, {"data_this_month": 10**9}),
]


@pytest.mark.parametrize(("code", "limits", "readings"), CASES)
def test_each_rule_alone_is_a_reason(
    code: str, limits: dict[str, object], readings: dict[str, object]
) -> None:
    decision = decide(
        Limits(time_zone="Europe/Berlin", **limits),  # type: ignore[arg-type]
        Readings(**readings),  # type: ignore[arg-type]
        NOON,
    )
    assert decision.codes == {code}
    assert not decision.runs
    assert decision.sentence
    assert decision.at_once == (code in AT_ONCE)


@pytest.mark.parametrize(
    ("limits", "readings"),
    [
        ({}, {}),
        ({"on_battery": True}, {"on_battery": True}),
        ({}, {"idle_s": 0.0}),
        ({"only_when_idle": True}, {"idle_s": 300.0}),
        ({"pause_for": ("game",)}, {"programs": ()}),
        ({"beside_gpu_programs": True}, {"gpu_programs": ("game",)}),
        ({}, {"cpu_temperature": 90.0, "gpu_temperature": 83.0}),
        ({"hours": ("wed 11:00-13:00",)}, {}),
        ({"data_per_day": "1GB"}, {"data_today": 10**9 - 1}),
    ],
)
def test_nothing_that_is_allowed_is_a_reason(
    limits: dict[str, object], readings: dict[str, object]
) -> None:
    assert decide(
        Limits(time_zone="Europe/Berlin", **limits),  # type: ignore[arg-type]
        Readings(**readings),  # type: ignore[arg-type]
        NOON,
    ).runs


def test_after_too_warm_it_has_to_get_cooler_first() -> None:
    hot = decide(Limits(), Readings(cpu_temperature=91.0), NOON)
    for degrees, runs in ((89.0, False), (85.1, False), (85.0, True)):
        assert decide(Limits(), Readings(cpu_temperature=degrees), NOON, before=hot).runs == runs
    assert decide(Limits(), Readings(cpu_temperature=89.0), NOON).runs
    assert decide(Limits(), QUIET, NOON, before=hot).runs  # the sensor is gone


def test_until_when_is_the_latest_of_all_that_is_known() -> None:
    limits = Limits(hours=("wed 13:00-14:00",), time_zone="Europe/Berlin")
    hold = Hold("asked", "you asked for it", NOON + 7200)
    both = decide(limits, QUIET, NOON, holds=[hold])
    assert both.until == NOON + 7200
    assert decide(limits, QUIET, NOON).until == NOON + 3600
    assert decide(limits, Readings(on_battery=True), NOON).until is None
    assert decide(limits, QUIET, NOON + 7200, holds=[hold]).codes == {"hours"}
    assert Decision().until is None
    endless = replace(hold, until=None)
    assert decide(Limits(), QUIET, NOON + 1e9, holds=[endless]).codes == {"asked"}


def test_data_is_counted_by_the_volunteers_day_and_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "data.json"
    count = DataCount.load(path)
    evening = at("2026-06-30 23:59:59")
    count.add(5, evening, BERLIN)
    count.add(7, evening + 1, BERLIN)
    count.add(7, evening + 2, BERLIN)
    count.save(path)
    again = DataCount.load(path)
    assert (again.today(evening, BERLIN), again.this_month(evening, BERLIN)) == (5, 5)
    assert (again.today(evening + 1, BERLIN), again.this_month(evening + 1, BERLIN)) == (14, 14)
    again.add(1, evening - 86_400, BERLIN)
    assert again.this_month(evening, BERLIN) == 6
    assert [file.name for file in path.parent.iterdir()] == ["data.json"]


def test_a_count_of_data_that_is_spoilt_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data.json"
    for text in ("", "[]", '{"days": {"x": "y"}}', "\xff"):
        path.write_text(text, encoding="latin-1")
        assert DataCount.load(path).today(NOON, None) == 0
        assert "counted from zero" in caplog.text
    count = DataCount()
    for day in range(KEPT_DAYS + 5):
        count.add(1, NOON + 86_400 * day, BERLIN)
    count.save(path)
    assert path.read_text().count("-") == 2 * KEPT_DAYS


def test_amounts_are_strict() -> None:
    assert parse_size("20GB") == 20 * 10**9
    assert parse_size("1.5 GiB") == 3 << 29
    assert parse_amount("50%").of(10) == 5
    assert parse_amount("50%").of(None) is None
    assert parse_amount("1kB").of(None) == 1000
    for text in ("20", "20gb", "20G", "-1GB", "0GB", "0%", "101%", "1e3GB", "GB", "", "50 percent"):
        with pytest.raises(ConfigError):
            parse_amount(text)
    with pytest.raises(ConfigError):
        parse_size("50%")


def test_lengths_of_time() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "1h30m", "2d", "0.5h")] == [
        90, 1200, 5400, 172_800, 1800,
    ]  # fmt: skip
    for text in ("", "20", "m", "0s", "1w", "-5m", "1h 30m", "9999d", "1h30"):
        with pytest.raises(ConfigError):
            parse_duration(text)
    shown = [format_duration(s) for s in (0, 59.4, 60, 5400, 7200, 90_000, 172_800)]
    assert shown == ["0 s", "59 s", "1 min", "1 h 30 min", "2 h", "1 d 1 h", "2 d"]


@given(st.integers(0, 10**15))
def test_sizes_are_short(count: int) -> None:
    shown = format_size(count)
    assert len(shown) <= 8 or count > 999 * 10**12
    number, unit = shown.split(" ")
    factor = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    assert float(number) * factor == pytest.approx(count, rel=0.051, abs=0.5)


def test_a_span_is_as_long_as_it_says() -> None:
    (span,) = parse_hours("tue 23:30-00:30")
    assert span.end - span.start == timedelta(hours=1).seconds // 60
