"""Limits from file, flags and changes; where each is from; `node.toml` changed, kept readable."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.limits.book import LISTS, Book, parse_assignments, read_value, save, write_value
from echo_node.limits.settings import Limits
from echo_p2p.errors import ConfigError

FILE = """# mine
[limits]            # be kind
ram = "4GB"  # half
hours = [
    "mon-fri 19:00-07:00",
]
"""


def test_flags_come_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    book = Book.read(path).changed(parse_assignments(["ram=2GB", "on_battery=yes"]), "flag")
    entries = {entry.name: entry for entry in book.entries()}
    assert (entries["ram"].value, entries["ram"].source) == ("2GB", "flag")
    assert (entries["on_battery"].value, entries["on_battery"].source) == ("yes", "flag")
    assert (entries["hours"].value, entries["hours"].source) == ("mon-fri 19:00-07:00", "file")
    assert entries["disk"].source == "default"
    assert list(entries) == list(Limits.model_fields)
    assert all(entry.meaning.endswith(".") for entry in entries.values())
    assert Book.read(tmp_path / "none.toml") == Book.read(None) == Book()
    with pytest.raises(ConfigError, match="cannot read"):
        Book.read(tmp_path / "none.toml", required=True)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("ram", "sets nothing"),
        ("rams=4GB", "no limit 'rams'"),
        ("ram=4", "neither a size nor a share"),
        ("hours=mon", "no weekly hours"),
        ("gpu_duty=fast", "not a number"),
        ("gpu_duty=4", "greater than or equal to 5"),
        ("on_battery=maybe", "neither yes nor no"),
        ("upload=20mb", "not a rate"),
        ("download=0", "cannot do without"),
        ("time_zone=Mars/Base", "no time zone"),
        ("priority=high", "'idle', 'low' or 'normal'"),
        ("max_cpu_temperature=nan", "finite"),
    ],
)
def test_a_wrong_change_is_said_and_changes_nothing(assignment: str, complaint: str) -> None:
    book = Book()
    with pytest.raises(ConfigError, match=complaint):
        book.changed(parse_assignments([assignment]), "changed")
    assert book == Book()


@pytest.mark.parametrize(
    "text", ["[limits]\nrams = 1", "[limit]", "[limits]\nram = 4", "limits = 3"]
)
def test_a_wrong_file_is_said_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"node\.toml:\d"):
        Book.read(path)


def test_saving_keeps_what_else_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    save(path, {"ram": "50%", "hours": "sat 00:00-24:00; sun 00:00-24:00", "gpu_duty": "40"})
    text = path.read_text()
    assert text.startswith("# mine\n[limits]            # be kind\ngpu_duty = 40\n")
    limits = Book.read(path).limits
    assert (limits.ram, limits.gpu_duty) == ("50%", 40)
    assert limits.hours == ("sat 00:00-24:00", "sun 00:00-24:00")
    assert [file.name for file in tmp_path.iterdir()] == ["node.toml"]


def test_saving_makes_the_file_and_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.toml"
    save(path, {"pause_for": 'a"b; c\\d'})
    assert Book.read(path).limits.pause_for == ('a"b', "c\\d")


def test_a_file_that_cannot_be_changed_safely_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    for text in ("limits.ram = '4GB'\n", "limits = {ram = '4GB'}\n", 'x = """\n[limits]\n"""\n'):
        path.write_text(text)
        with pytest.raises((ConfigError, tomllib.TOMLDecodeError)):
            save(path, {"ram": "1GB"})
        assert path.read_text() == text


@given(st.sampled_from(list(Limits.model_fields)), st.data())
def test_values_are_written_as_they_are_read(name: str, data: st.DataObject) -> None:
    text = st.text(st.characters(codec="ascii", exclude_characters=";"), max_size=10)
    values = {
        bool: st.booleans(),
        int: st.integers(0, 1000),
        float: st.sampled_from([30.0, 0.1, 83.5, 1440.0]),
    }
    kind = Limits.model_fields[name].annotation
    if name in LISTS:
        parts = text.map(str.strip).filter(bool)
        value: object = tuple(data.draw(st.lists(parts, max_size=3)))
    else:
        value = data.draw(values.get(kind, text))  # type: ignore[call-overload]
    assert read_value(name, write_value(value)) == value
