"""TOML files read into strict pydantic models, with errors a person can act on.

An error names the file, the line, the field, what was found there, and, for an unknown key, which
keys exist.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from echo_p2p.errors import ConfigError

MAX_FILE_BYTES = 1 << 20


class Strict(BaseModel):
    """Base of every configuration model: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


S = TypeVar("S", bound=Strict)


def load_toml(path: Path, model: type[S]) -> S:
    """Read and check one file; ConfigError says what is wrong where."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes; this is no such file.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.") from error
    return parse_toml(text, model, source=str(path))


def parse_toml(text: str, model: type[S], *, source: str) -> S:
    """Check a TOML text; `source` is what errors call it."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of tomllib, and of a number with 5,000 digits
        raise ConfigError(f"{source} is not valid TOML: {error}.") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_describe(text, model, problem) for problem in error.errors()]
        raise ConfigError("\n".join(f"{source}:{p}" for p in problems)) from error


def _describe(text: str, model: type[BaseModel], problem: Any) -> str:
    location: tuple[str | int, ...] = problem["loc"]
    field = ".".join(str(part) for part in location) or "(file)"
    line = _line_of(text, location)
    if problem["type"] == "extra_forbidden":
        known = ", ".join(_keys_at(model, location[:-1]))
        return f"{line}: {field}: there is no such key. Keys here: {known}."
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{line}: {field}: this key is required."
    return f"{line}: {field}: {message} (found {problem['input']!r:.80})."


def _keys_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        if field is None:
            return []
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not models:
            return []
        current = models[0]
    return sorted(f.alias or name for name, f in current.model_fields.items())


_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _line_of(text: str, location: tuple[str | int, ...]) -> int:
    """The line on which a field stands, or the innermost table around it; 1 if it is the file.

    Approximate where a multi-line string or array holds lines that look like keys or headers.
    """
    line_found, depth_found = 1, 0
    table: tuple[str | int, ...] = ()
    counts: Counter[tuple[str | int, ...]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _with_indices(_names(header[2]), counts, new=header[1] == "[[")
            here = table
        elif key := _KEY.match(line):
            here = table + _names(key[1])
        else:
            continue
        if len(here) > depth_found and location[: len(here)] == here:
            line_found, depth_found = number, len(here)
    return line_found


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("\"'") for name in dotted.split("."))


def _with_indices(
    names: tuple[str, ...], counts: Counter[tuple[str | int, ...]], *, new: bool
) -> tuple[str | int, ...]:
    """A header's table, with the index of the current element after each array of tables."""
    table: tuple[str | int, ...] = ()
    for depth, name in enumerate(names, 1):
        table += (name,)
        if new and depth == len(names):
            counts[table] += 1
        if counts[table]:
            table += (counts[table] - 1,)
    return table
