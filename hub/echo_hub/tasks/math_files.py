r"""Problems read from files as GSM8K and MATH are published: JSONL or parquet.

A row has its text in `question` or `problem`. Its answer is what stands in a column `answer`, after
`####` if that is there (GSM8K), else in the last `\boxed{}` of the column `solution` (MATH).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from echo_hub.tasks.math_check import boxed
from echo_hub.tasks.math_problems import Problem
from echo_p2p.errors import ConfigError, NoAnswerError

MAX_ROWS = 2_000_000
MAX_TEXT = 65_536
"""Characters in one column of a row."""
_TEXT_COLUMNS = ("question", "problem")
_GSM8K_MARK = "####"


def read_problems(path: Path) -> list[Problem]:
    """All problems of a file, in its order; ConfigError says which row is not as it should be."""
    rows = {".jsonl": _json_rows, ".parquet": _parquet_rows}.get(path.suffix)
    if rows is None:
        raise ConfigError(
            f"{path} is neither .jsonl nor .parquet.", fix="Name a file of one of these kinds."
        )
    problems = []
    for number, row in enumerate(rows(path), start=1):
        if number > MAX_ROWS:
            raise ConfigError(f"{path} has more than {MAX_ROWS} rows.")
        problems.append(_problem(row, f"{path}, row {number}"))
    if not problems:
        raise ConfigError(f"{path} has no rows.")
    return problems


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _json_row(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _json_row(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is not a JSON object.")
    return row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
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
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _problem(row: Mapping[str, Any], where: str) -> Problem:
    name = next((column for column in _TEXT_COLUMNS if column in row), None)
    if name is None:
        raise ConfigError(
            f"{where} has neither {' nor '.join(_TEXT_COLUMNS)}, but {', '.join(row)}.",
            fix="Rename the column that holds the problems.",
        )
    return Problem(_text(row, name, where), _answer(row, where))


def _answer(row: Mapping[str, Any], where: str) -> str:
    if "answer" in row:
        _, _, answer = _text(row, "answer", where).rpartition(_GSM8K_MARK)
    elif "solution" in row:
        try:
            answer = boxed(_text(row, "solution", where))
        except NoAnswerError as error:
            raise ConfigError(f"{where}: the solution has no answer. {error.message}") from error
    else:
        raise ConfigError(f"{where} has neither answer nor solution, but {', '.join(row)}.")
    if not answer.strip():
        raise ConfigError(f"{where} has an empty answer.")
    return answer.strip()


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = row[column]
    if column == "answer" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {column} is {type(value).__name__}, and should be text.")
    if len(value) > MAX_TEXT:
        raise ConfigError(f"{where}: {column} has {len(value)} characters; {MAX_TEXT} at most.")
    return value
