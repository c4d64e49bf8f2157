"""The limits in force, and where each of them comes from: default, file, flag, or changed since.

Pure but for reading and writing `node.toml`. A change is checked as a whole before it counts.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from echo_node.limits.settings import Limits, NodeConfig
from echo_p2p.errors import ConfigError
from echo_p2p.toml import load_toml, validate

Source = Literal["default", "file", "flag", "changed"]
LISTS = ("hours", "pause_for")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as people see it. `value` as `limits set` takes it."""

    name: str
    value: str
    source: Source
    meaning: str


@dataclass(frozen=True)
class Book:
    """The limits and their sources."""

    limits: Limits = field(default_factory=Limits)
    sources: Mapping[str, Source] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, *, required: bool = False) -> Book:
        """From a file; the defaults if it is not there and need not be."""
        if path is None or (not required and not path.exists()):
            return cls()
        limits = load_toml(path, NodeConfig).limits
        return cls(limits, dict.fromkeys(limits.model_fields_set, "file"))

    def changed(self, changes: Mapping[str, str], source: Source) -> Book:
        """With other values for some; ConfigError, and nothing changes, if one is wrong."""
        data = {
            **self.limits.model_dump(),
            **{name: read_value(name, changes[name]) for name in changes},
        }
        limits = validate(data, Limits, source="limits")
        return Book(limits, {**self.sources, **dict.fromkeys(changes, source)})

    def entries(self) -> list[Entry]:
        """All of them, in the order of their fields."""
        return [
            Entry(
                name=name,
                value=write_value(getattr(self.limits, name)),
                source=self.sources.get(name, "default"),
                meaning=" ".join((info.description or "").split()),
            )
            for name, info in Limits.model_fields.items()
        ]


def parse_assignments(texts: list[str]) -> dict[str, str]:
    """`NAME=VALUE` each."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} sets nothing.", fix="Write NAME=VALUE, like ram=4GB.")
        found[_known(name.strip())] = value.strip()
    return found


def _known(name: str) -> str:
    if name not in Limits.model_fields:
        raise ConfigError(
            f"there is no limit {name!r}.", fix=f"There are: {', '.join(Limits.model_fields)}."
        )
    return name


def read_value(name: str, text: str) -> Any:
    """A value as the model takes it; lists are separated by semicolons."""
    kind = Limits.model_fields[_known(name)].annotation
    if name in LISTS:
        return tuple(part.strip() for part in text.split(";") if part.strip())
    if kind is bool:
        if text.lower() not in ("yes", "no", "true", "false"):
            raise ConfigError(f"{name}: {text!r} is neither yes nor no.")
        return text.lower() in ("yes", "true")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{name}: {text!r} is not a number.") from None
    return text


def write_value(value: Any) -> str:
    """The inverse of `read_value`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "; ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def save(path: Path, changes: Mapping[str, str]) -> None:
    """Put changed limits into `node.toml`; what else is in it, and its comments, stay.

    The result is read back before it takes the old one's place, all at once.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    new = text
    for name, value in changes.items():
        new = _with_line(new, name, f"{name} = {_toml(read_value(name, value))}")
    wanted = {name: read_value(name, value) for name, value in changes.items()}
    limits = validate(tomllib.loads(new), NodeConfig, source=str(path), text=new).limits
    if any(getattr(limits, name) != value for name, value in wanted.items()):
        raise ConfigError(f"{path} is written in a way that we cannot change.", fix="Edit it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".node.toml.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(new)
    Path(temporary).replace(path)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_line(text: str, name: str, line: str) -> str:
    """TOML with a key of `[limits]` set; an array over several lines is replaced whole."""
    header = re.search(r"^\[limits\][^\n]*$", text, re.MULTILINE)
    if header is None:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[limits]\n{line}\n"
    start = header.end()
    following = re.search(r"^\[", text[start:], re.MULTILINE)
    end = len(text) if following is None else start + following.start()
    table = text[start:end]
    key = re.compile(rf"^{name}[ \t]*=[ \t]*(\[[^\]]*\][^\n]*|[^\n]*)$", re.MULTILINE)
    if key.search(table):
        return text[:start] + key.sub(lambda _: line, table, count=1) + text[end:]
    return f"{text[:start]}\n{line}{text[start:]}"
