"""Rows of a dataset: from a local file, a folder, or by its name on the Hugging Face hub.

Files are read here, so that an error can name file, row and column; folders and names are read by
the `datasets` package. Nothing is loaded with code of the dataset's own. Row numbers begin with 1;
of JSONL and CSV they are line numbers.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_p2p.errors import ConfigError

MAX_ROWS = 2_000_000
MAX_TEXT = 65_536
"""Characters in one cell."""

Row = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """What to read. `split`, `subset` and `revision` are for folders and names alone."""

    name: str
    split: str = ""
    subset: str = ""
    revision: str = ""

    def __str__(self) -> str:
        parts = [self.name, self.subset, self.split]
        return self.name if self.is_file else ":".join(part for part in parts if part)

    @property
    def is_file(self) -> bool:
        return Path(self.name).suffix in _READERS


def read_rows(source: Source) -> Iterator[Row]:
    """The rows of a dataset in order; ConfigError says what cannot be read, and where."""
    rows = _READERS[Path(source.name).suffix](Path(source.name)) if source.is_file else None
    number = 0
    for number, row in rows or _hugging_face(source):
        if number > MAX_ROWS:
            raise ConfigError(f"{source} has more than {MAX_ROWS} rows.")
        yield number, row
    if not number:
        raise ConfigError(f"{source} has no rows.")


def text_of(row: Mapping[str, Any], column: str, where: str) -> str:
    """A cell as text; ConfigError if it is missing, empty, or neither text nor a number."""
    if column not in row:
        raise ConfigError(
            f"{where}: there is no column {column!r}.", fix=f"There are: {', '.join(row)}."
        )
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "empty" if value is None else f"of type {type(value).__name__}"
        raise ConfigError(f"{where}: column {column!r} is {kind}, and should be text or a number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: column {column!r} is {value}, and should be text or a number.")
    text = str(value)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(
            f"{where}: column {column!r} holds half of a surrogate pair: {text!a:.80}."
        )
    if not text.strip():
        raise ConfigError(f"{where}: column {column!r} is empty.")
    if len(text) > MAX_TEXT:
        raise ConfigError(
            f"{where}: column {column!r} has {len(text)} characters; {MAX_TEXT} at most."
        )
    return text


def _json_lines(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _json_row(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _json_row(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: this is not a JSON object.")
    return row


def _csv(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or ()
            if len({*names}) < len(names):
                raise ConfigError(f"{path}:1: two columns have the same name.")
            for row in reader:
                if None in row or None in row.values():
                    raise ConfigError(
                        f"{path}:{reader.line_num}: this row has not as many cells as the header."
                    )
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            "the package pyarrow is not installed.",
            fix="Install the hub's extras: pip install 'echo-p2p[hub]'",
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


_READERS = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}


def _hugging_face(source: Source) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "the package datasets is not installed, which reads datasets by name and folders.",
            fix="Install it: pip install 'echo-p2p[envs]'. Files that end in "
            f"{', '.join(_READERS)} need no more than the hub's own extras.",
        ) from error
    folder = Path(source.name)
    try:
        if any((folder / mark).exists() for mark in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(source.name)
        else:
            loaded = datasets.load_dataset(
                source.name, source.subset or None, revision=source.revision or None
            )
    except Exception as error:
        raise ConfigError(
            f"cannot load the dataset {source.name}: {type(error).__name__}: {error}"[:1000],
            fix="Is its name right, and the machine online (or the dataset in its cache)?",
        ) from error
    if isinstance(loaded, dict):
        if source.split not in loaded:
            raise ConfigError(
                f"the dataset {source.name} has no split {source.split!r}.",
                fix=f"It has: {', '.join(map(str, loaded))}.",
            )
        loaded = loaded[source.split]
    yield from enumerate(loaded, start=1)
