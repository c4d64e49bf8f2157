"""`dataset:<file, folder or name>`: prompts and right answers from the rows of a dataset.

All rows are read and checked when the task is made: what is wrong is said then, with file, row and
column, and not in the middle of a run. Prompt i of a split is row i of a shuffle that the run's
seed fixes, and after the last row comes the first again. So with as many `buckets` as there are
train rows, each bucket is one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.rows import Source, read_rows, text_of
from echo_hub.tasks.sandbox import check_sandbox
from echo_hub.tasks.splits import held_out, rng_of
from echo_hub.tasks.verifiers import VERIFIERS, Verifier, check_extract, extracted
from echo_p2p.errors import ConfigError
from echo_p2p.toml import Strict, validate

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class DatasetOptions(Strict):
    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    """What the policy is asked: text in which {column} stands for a row's cell; {{ is a brace."""
    answer: Annotated[str, Field(min_length=1)]
    """The column with the right answer."""
    answer_after: str = ""
    """Of that column, only what comes after the last of this mark counts; GSM8K has "####"."""
    verifier: Literal["exact", "number", "symbolic", "regex", "python"] = "exact"
    """exact: the same text, but for space around it. number: the last number is equal. symbolic:
    mathematically equal, in LaTeX (math-verify), in the last \\boxed{} if there is one. regex: the
    column holds a regular expression, which must match all of the answer. python: the column holds
    tests, which are run after the code in the answer (its last ``` block), in the sandbox."""
    extract: Annotated[str, Field(max_length=1000)] = ""
    """A regular expression: its last match in what the policy wrote, or the first group of it, is
    the answer; without a match the answer is wrong. Empty: all of it is the answer."""
    split: str = "train"
    """Of a folder or a name: the split to train on."""
    heldout: str = ""
    """The split to evaluate on, or another file; empty: a quarter of the rows, by what they say."""
    subset: str = ""
    """Of a name: which configuration of the dataset."""
    revision: str = ""
    """Of a name: a commit of it, so that it stays as it is."""
    duplicates: Literal["refuse", "drop"] = "refuse"
    """What to do about a prompt that comes twice in a split."""
    leaks: Literal["refuse", "drop"] = "refuse"
    """What to do about a train prompt that is held out too; drop takes it out of train."""


@dataclass(frozen=True)
class _Item:
    """A row: what is asked, the right answer, and where it stands."""

    text: str
    answer: str
    where: str

    @property
    def key(self) -> str:
        """What makes it the same prompt as another."""
        return " ".join(self.text.split())


class Dataset:
    """A task of a dataset's rows."""

    def __init__(self, name: str, options: Mapping[str, Any], seed: int) -> None:
        self._options = validate(dict(options), DatasetOptions, source="task.options")
        check_extract(self._options.extract)
        self._verifier = VERIFIERS[self._options.verifier]
        if self._options.verifier == "python":
            check_sandbox()
        splits = _read_splits(name, self._options, self._verifier)
        for split, items in splits.items():
            rng_of(seed, "rows", split).shuffle(items)
        self._splits = splits

    def prompt(self, split: Split, index: int) -> Prompt:
        items = self._splits[split]
        item = items[index % len(items)]
        return Prompt(item.text, {"answer": item.answer})

    def reward(self, prompt: Prompt, answer: str) -> float:
        found = extracted(self._options.extract, answer)
        return float(found is not None and self._verifier.compare(prompt.data["answer"], found))


def _read_splits(
    name: str, options: DatasetOptions, verifier: Verifier
) -> dict[Split, list[_Item]]:
    source = Source(name, options.split, options.subset, options.revision)
    items = _read(source, options, verifier)
    train = {key: item for key, item in items.items() if not held_out(key)}
    heldout = {key: item for key, item in items.items() if held_out(key)}
    if options.heldout:
        other = Source(options.heldout)
        if not other.is_file:
            other = Source(name, options.heldout, options.subset, options.revision)
        train, heldout = items, _read(other, options, verifier)
        train = _without_leaks(train, heldout, options)
    if not train or not heldout:
        raise ConfigError(
            f"{source} has {len(train)} prompts to train on and {len(heldout)} held out.",
            fix="Both need some: use a larger dataset, or name its held-out split or file "
            "in task.options.heldout.",
        )
    return {"train": list(train.values()), "heldout": list(heldout.values())}


def _without_leaks(
    train: dict[str, _Item], heldout: Mapping[str, _Item], options: DatasetOptions
) -> dict[str, _Item]:
    leaked = [key for key in train if key in heldout]
    if leaked and options.leaks == "refuse":
        one, other = train[leaked[0]], heldout[leaked[0]]
        raise ConfigError(
            f"{other.where}: this held-out prompt is trained on too, as {one.where}; "
            f"there are {len(leaked)} of them.",
            fix='Mend the files, or set task.options.leaks = "drop" to take them out of train.',
        )
    return {key: item for key, item in train.items() if key not in heldout}


def _read(source: Source, options: DatasetOptions, verifier: Verifier) -> dict[str, _Item]:
    """The rows of one split by their keys, in order."""
    columns = _columns(options.prompt)
    found: dict[str, _Item] = {}
    for number, row in read_rows(source):
        where = f"{source}:{number}" if source.is_file else f"{source}, row {number}"
        cells = {column: text_of(row, column, where) for column in columns}
        text = _fill(options.prompt, cells)
        item = _Item(text, _right_answer(row, options, verifier, where), where)
        before = found.get(item.key)
        if before is None:
            found[item.key] = item
        elif before.answer != item.answer:
            raise ConfigError(
                f"{where}: this prompt has the answer {item.answer!a:.100}, and as {before.where} "
                f"{before.answer!a:.100}.",
                fix="One of the two rows is wrong.",
            )
        elif options.duplicates == "refuse":
            raise ConfigError(
                f"{where}: this prompt stands in {before.where} already.",
                fix='Mend the file, or set task.options.duplicates = "drop".',
            )
    return found


def _right_answer(
    row: Mapping[str, Any], options: DatasetOptions, verifier: Verifier, where: str
) -> str:
    text = text_of(row, options.answer, where)
    mark = options.answer_after
    if mark and mark not in text:
        raise ConfigError(f"{where}: column {options.answer!r} has no {mark!r} in it.")
    answer = text.rpartition(mark)[2].strip() if mark else text.strip()
    try:
        verifier.check(answer)
    except ValueError as error:
        raise ConfigError(
            f"{where}: column {options.answer!r} is {answer!a:.100}, and {error}.",
            fix=f"The verifier {options.verifier!r} needs another column, or answers like its own.",
        ) from error
    return answer


def _columns(template: str) -> list[str]:
    """The columns that a template names; ConfigError if it is none."""
    columns = []
    for match in _FIELD.finditer(template):
        if match.group(1):
            columns.append(match.group(1))
        elif match.group() not in ("{{", "}}"):
            raise ConfigError(
                f"task.options.prompt: there is a lone {match.group()!r} in it.",
                fix="Write {column} for a cell, and {{ or }} for a brace.",
            )
    if not columns:
        raise ConfigError(
            "task.options.prompt names no column, so all prompts would be the same.",
            fix='Write it like "{question}".',
        )
    return columns


def _fill(template: str, cells: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return cells[match.group(1)] if match.group(1) else match.group()[0]

    return _FIELD.sub(value, template)
