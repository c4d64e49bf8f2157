"""TOML files: strict models, and errors that name the file, the line and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from echo_p2p.errors import ConfigError
from echo_p2p.toml import MAX_FILE_BYTES, Strict, load_toml, parse_toml, validate, wrong


class Limits(Strict):
    cores: Annotated[int, Field(ge=1)] = 1
    hours: tuple[int, ...] = ()


class Peer(Strict):
    name: str
    addresses: tuple[str, ...] = ()
    limits: Limits = Limits()


class Home(Strict):
    title: str
    seed: int = 0
    limits: Limits = Limits()
    peers: Annotated[tuple[Peer, ...], Field(min_length=1)] = (Peer(name="a"),)

    @model_validator(mode="after")
    def _no_thirteen(self) -> Home:
        if self.seed == 13:
            raise ValueError("thirteen is unlucky")
        if self.seed > self.limits.cores * 100:
            raise wrong("limits.cores", f"too few for seed {self.seed}")
        return self


GOOD = """\
title = "here"          # 1
seed = 7

[limits]                # 4
cores = 2
hours = [1, 2]

[[peers]]               # 8
name = "a"
addresses = [
    "one",
]

[[peers]]               # 14
name = "b"

[peers.limits]          # 17
cores = 3
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, Home, source="home.toml")
    return str(caught.value).splitlines()


def test_a_good_file_is_its_model() -> None:
    home = parse_toml(GOOD, Home, source="home.toml")
    assert home == Home(
        title="here",
        seed=7,
        limits=Limits(cores=2, hours=(1, 2)),
        peers=(
            Peer(name="a", addresses=("one",)),
            Peer(name="b", limits=Limits(cores=3)),
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "what"),
    [
        ("seed = 7", "sed = 7", 2, "sed", "no such key. Keys here: limits, peers, seed, title."),
        ("cores = 2", "core = 2", 5, "limits.core", "no such key. Keys here: cores, hours."),
        ("cores = 2", "cores = 0", 5, "limits.cores", "greater than or equal to 1 (found 0)"),
        ("cores = 2", 'cores = "2x"', 5, "limits.cores", "a valid integer"),
        ("hours = [1, 2]", 'hours = [1, "x"]', 6, "limits.hours.1", "(found 'x')"),
        ('title = "here"', "", 1, "title", "this key is required."),
        ('name = "b"', "", 14, "peers.1.name", "this key is required."),
        ('name = "b"', "name = 5", 15, "peers.1.name", "a valid string (found 5)"),
        ('name = "a"', 'names = "a"', 9, "peers.0.names", "Keys here: addresses, limits, name."),
        ('    "one"', "    1", 10, "peers.0.addresses.0", "a valid string (found 1)"),
        ("cores = 3", "cores = -3", 18, "peers.1.limits.cores", "(found -3)"),
        ("cores = 3", "hour = -3", 18, "peers.1.limits.hour", "Keys here: cores, hours."),
        ("[limits]", "[limit]", 4, "limit", "there is no such key"),
        ("seed = 7", "seed = 13", 1, "(file)", "thirteen is unlucky."),
        ("seed = 7", "seed = 999", 5, "limits.cores", "too few for seed 999."),
        ("seed = 7", "'se ed' = 7", 2, "se ed", "there is no such key"),
        ("seed = 7", "limits.core = 7", 2, "limits.core", "there is no such key"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    old: str, new: str, line: int, field: str, what: str
) -> None:
    text = GOOD.replace(old, new, 1)
    if new.startswith("limits."):
        text = text.replace("[limits]", "[other]")
    found = [each for each in problems(text) if f" {field}: " in each]
    assert len(found) == 1
    assert found[0].startswith(f"home.toml:{line}: {field}: ")
    assert what in found[0]


def test_every_mistake_is_named_at_once() -> None:
    text = GOOD.replace("seed", "sed").replace("cores = 2", "cores = 0")
    assert [each.split(": ")[:2] for each in problems(text)] == [
        ["home.toml:5", "limits.cores"],
        ["home.toml:2", "sed"],
    ]


def test_what_is_wrong_inside_is_not_told_of_the_outside_too() -> None:
    text = 'title = "x"\n[[peers]]\nname = 1\n'
    assert problems(text) == [
        "home.toml:3: peers.0.name: Input should be a valid string (found 1)."
    ]


def test_values_that_stand_in_no_text_have_no_line() -> None:
    with pytest.raises(ConfigError, match=r"^the demo: limits\.cores: .*\(found 0\)\.$"):
        validate({"title": "x", "limits": {"cores": 0}}, Home, source="the demo")


def test_a_key_of_the_same_name_elsewhere_does_not_mislead() -> None:
    text = 'title = "x"\n[[peers]]\n[limits]\nname = 1\n'
    assert "home.toml:2: peers.0.name: this key is required." in problems(text)
    assert any(each.startswith("home.toml:4: limits.name: ") for each in problems(text))


def test_what_is_no_toml_says_so() -> None:
    (only,) = problems("title = ")
    assert only.startswith("home.toml is not valid TOML: Invalid value (at")


@pytest.mark.parametrize(
    "bomb",
    [
        "title = " + "[" * 100_000,
        "title = " + "[" * 400 + "]" * 400,
        ".".join(["a"] * 2_000) + " = 1",
        "title = " + "{a=" * 100_000,
        "title = " + "9" * 100_000,
    ],
)
def test_bombs_are_config_errors(bomb: str) -> None:
    with pytest.raises(ConfigError, match=r"^home\.toml"):
        parse_toml(bomb, Home, source="home.toml")


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    cases = {"latin.toml": b'title = "\xe9"', "big.toml": b"#" * (MAX_FILE_BYTES + 1)}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    for name, what in (
        ("none.toml", "cannot read .*none.toml: No such file"),
        (".", "cannot read .*: Is a directory"),
        ("latin.toml", "latin.toml is not UTF-8 text"),
        ("big.toml", "big.toml is over 1048576 bytes"),
    ):
        with pytest.raises(ConfigError, match=what):
            load_toml(tmp_path / name, Home)
    (tmp_path / "good.toml").write_text(GOOD, encoding="utf-8")
    assert load_toml(tmp_path / "good.toml", Home).title == "here"


def test_configuration_does_not_change() -> None:
    home = parse_toml(GOOD, Home, source="home.toml")
    with pytest.raises(ValueError, match="frozen"):
        home.seed = 8  # type: ignore[misc]


LINES = st.sampled_from([*GOOD.splitlines(), "x", "[", "]]", "= 1", '"""', "[a.b]", "[[a]]", "é=1"])


@given(st.lists(LINES, max_size=12).map("\n".join) | st.text(max_size=80))
def test_any_text_is_the_model_or_a_config_error(text: str) -> None:
    try:
        parse_toml(text, Home, source="home.toml")
    except ConfigError as error:
        assert str(error).startswith("home.toml")
