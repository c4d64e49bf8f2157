"""Rates as text: what is understood, what is refused and how, and that nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_p2p.errors import ConfigError
from echo_p2p.rates import LEAST, Limits, format_rate, parse_limits, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("unlimited", None),
        ("0", 0),
        ("20mbit", 2_500_000),
        ("20 mbit", 2_500_000),
        ("2.5MB", 2_500_000),
        ("512kbit", LEAST),
        ("1gbit", 125_000_000),
        ("1MiB", 1 << 20),
    ],
)
def test_what_people_write(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "20", "20mb", "20Mb", "2.5mB", "20Mbit", "-1MB", "1e3MB", "nan MB", "20mbit/s", "٣MB",
     "Unlimited", "1,5MB", "0.5", " 20mbit", "20mbit\n", "9" * 40 + "MB", "MB", "none"],
)  # fmt: skip
def test_what_could_mean_two_things_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["511kbit", "1kB", "0.0001kbit"])
def test_a_rate_of_no_use_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the least is 512kbit"):
        parse_rate(text)


@given(st.none() | st.just(0) | st.integers(LEAST // 125, 10**9).map(lambda kilobit: kilobit * 125))
def test_a_rate_shown_is_the_rate_read(rate: int | None) -> None:
    assert parse_rate(format_rate(rate)) == rate


def test_the_limits_of_a_node() -> None:
    limits = parse_limits(upload="0", download="8mbit")
    assert limits == Limits(upload=0, download=1_000_000)
    assert not limits.gives
    assert limits.as_text() == {"max_upload": "0", "max_download": "8mbit"}
    assert Limits().gives
