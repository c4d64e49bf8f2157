"""TOML files read into strict pydantic models, with errors a person can act on.

An error names the file, the line, the field, what was found there, and, for an unknown key, which
keys exist. Of what is wrong only because something inside it is wrong, nothing is said.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from echo_p2p.errors import ConfigError

MAX_FILE_BYTES = 1 << 20


class Strict(BaseModel):
    """Base of every configuration model: unknown keys are errors, numbers are finite, values are
    frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


S = TypeVar("S", bound=Strict)

Place = tuple[str | int, ...]
"""Where in a file something stands: the keys, and the indices, that lead there."""

_AT_FIELD = "at_field"


def wrong(field: str, message: str) -> PydanticCustomError:
    """What a validator of a whole model raises about one of its fields.

    Dotted if it is deeper; `tasks.1` is the second in an array.
    """
    return PydanticCustomError(_AT_FIELD, "{message}", {"field": field, "message": message})


def load_toml(path: Path, model: type[S]) -> S:
    """Read and check one file; ConfigError says what is wrong where."""
    return parse_toml(read_toml(path), model, source=str(path))


def read_toml(path: Path) -> str:
    """The text of a file; ConfigError if there is none of a reasonable size."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes; this is no such file.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.") from error
    return text


def parse_toml(text: str, model: type[S], *, source: str) -> S:
    """Check a TOML text; `source` is what errors call it."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of tomllib, and of a number with 5,000 digits
        raise ConfigError(f"{source} is not valid TOML: {error}.") from error
    return validate(data, model, source=source, text=text)


def validate(data: dict[str, Any], model: type[S], *, source: str, text: str = "") -> S:
    """Check values; where they stand in a TOML `text`, errors name the line there."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [(_place(problem), problem) for problem in error.errors()]
        places = [place for place, _ in problems]
        told = []
        for place, problem in problems:
            if not any(_is_inside(other, place) for other in places):
                line = f"{_line_of(text, place)}:" if text else ""
                told.append(f"{source}:{line} {_describe(model, place, problem)}")
        raise ConfigError("\n".join(told)) from error


def _is_inside(place: Place, outer: Place) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _place(problem: Any) -> Place:
    location: Place = problem["loc"]
    if problem["type"] == _AT_FIELD:
        parts = problem["ctx"]["field"].split(".")
        return (*location, *(int(part) if part.isdecimal() else part for part in parts))
    return location


def _describe(model: type[BaseModel], place: Place, problem: Any) -> str:
    field = ".".join(str(part) for part in place) or "(file)"
    if problem["type"] == "extra_forbidden":
        known = ", ".join(_keys_at(model, place[:-1]))
        return f"{field}: there is no such key. Keys here: {known}."
    if problem["type"] == "missing":
        return f"{field}: this key is required."
    message = str(problem["msg"]).removeprefix("Value error, ")
    found = problem["input"]
    # of a whole table there is too much to show
    shown = f" (found {found!r:.80})" if isinstance(found, str | int | float) else ""
    return f"{field}: {message}{shown}."


def _keys_at(model: type[BaseModel], location: Place) -> list[str]:
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


def _line_of(text: str, location: Place) -> int:
    """The line on which a field stands, or the innermost table around it; 1 if it is the file.

    Approximate where a multi-line string or array holds lines that look like keys or headers.
    """
    line_found, depth_found = 1, 0
    table: Place = ()
    counts: Counter[Place] = Counter()
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


def _with_indices(names: tuple[str, ...], counts: Counter[Place], *, new: bool) -> Place:
    """A header's table, with the index of the current element after each array of tables."""
    table: Place = ()
    for depth, name in enumerate(names, 1):
        table += (name,)
        if new and depth == len(names):
            counts[table] += 1
        if counts[table]:
            table += (counts[table] - 1,)
    return table
