"""Tasks from datasets: files and folders as they should be, and as they should not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.verifiers import VERIFIERS, extracted, number_in
from echo_p2p.errors import ConfigError

ROWS = [{"question": f"What is {i} + {i}?", "answer": f"I add. #### {2 * i}"} for i in range(40)]
OPTIONS = {"prompt": "{question}\nAnswer:", "answer": "answer", "answer_after": "####"}


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def texts(task: Any, split: Split, count: int) -> list[str]:
    return [task.prompt(split, index).text for index in range(count)]


def made(path: Path | str, **options: object) -> Any:
    return make_task(f"dataset:{path}", {**OPTIONS, "verifier": "number", **options}, 0)


def write(path: Path) -> Path:
    """The rows in the kind of file that the name says; a folder of `datasets` if it is none."""
    if path.suffix == ".jsonl":
        return jsonl(path, ROWS)
    if path.suffix == ".csv":
        lines = ["question,answer", *(f'"{row["question"]}","{row["answer"]}"' for row in ROWS)]
        path.write_text("\n".join(lines), encoding="utf-8")
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        one = datasets.Dataset.from_list(ROWS)
        datasets.DatasetDict({"train": one}).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.parquet", "folder"])
def test_every_row_is_a_prompt_of_one_split_and_comes_again(tmp_path: Path, name: str) -> None:
    task = made(write(tmp_path / name))
    train, heldout = texts(task, "train", 40), texts(task, "heldout", 40)
    assert {*train, *heldout} == {f"{row['question']}\nAnswer:" for row in ROWS}
    assert not {*train} & {*heldout}
    count = len({*train})
    assert 20 <= count < 40
    assert texts(task, "train", 2 * count)[count:] == train[:count]
    again = made(tmp_path / name)
    assert texts(again, "train", 40) == train  # a function of file, seed, split and index alone
    assert texts(make_task(f"dataset:{tmp_path / name}", OPTIONS, 1), "train", count) != train
    prompt = task.prompt("train", 3)
    right = prompt.data["answer"]
    assert [task.reward(prompt, text) for text in (right, f"so {right}.", "12345", "")] == [
        1, 1, 0, 0,
    ]  # fmt: skip


def test_a_heldout_file(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", ROWS[:30])
    heldout = jsonl(tmp_path / "heldout.jsonl", ROWS[30:])
    task = made(train, heldout=str(heldout))
    assert len(set(texts(task, "train", 60))) == 30
    assert len(set(texts(task, "heldout", 20))) == 10


@pytest.mark.parametrize(
    ("rows", "options", "complaint"),
    [
        ([], {}, r"d\.jsonl has no rows"),
        ([{"q": "1"}], {}, r"d\.jsonl:1: there is no column 'question'\. There are: q\."),
        ([*ROWS[:2], {"question": "a"}], {}, r":3: there is no column 'answer'"),
        ([{"question": ["a"], "answer": "1"}], {}, r":1: column 'question' is of type list"),
        ([{"question": float("nan"), "answer": "1"}], {}, r":1: column 'question' is nan"),
        ([{"question": "\ud800", "answer": "1"}], {}, r":1: .* half of a surrogate pair"),
        ([{"question": True, "answer": "1"}], {}, r":1: column 'question' is of type bool"),
        ([{"question": None, "answer": "1"}], {}, r":1: column 'question' is empty"),
        ([{"question": " ", "answer": "1"}], {}, r":1: column 'question' is empty"),
        ([{"question": "a" * 70_000, "answer": "1"}], {}, r":1: .* has 70000 characters"),
        ([[1]], {}, r":1: this is not a JSON object"),
        ([ROWS[0], ROWS[1], ROWS[0]], {}, r":3: this prompt stands in .*:1 already\. .*duplicates"),
        (
            [ROWS[0], {**ROWS[0], "answer": "#### 7"}],
            {"duplicates": "drop"},
            r":2: this prompt has the answer '7', and as .*:1 '0'\.",
        ),
        (
            [{**ROWS[0], "answer": "#### ?"}],
            {},
            r":1: column 'answer' is '\?', and there is no num",
        ),
        ([{**ROWS[0], "answer": "7"}], {}, r":1: column 'answer' has no '####' in it"),
        (
            [{**ROWS[0], "answer": "#### ("}],
            {"verifier": "regex"},
            r":1: column 'answer' is '\(', and it is no regular expression",
        ),
        (ROWS[:1], {}, r"has [01] prompts to train on and [01] held out"),
        (ROWS, {"prompt": "no column"}, "names no column"),
        (ROWS, {"prompt": "{question"}, r"a lone '\{'"),
        (ROWS, {"prompt": "{}"}, r"a lone '\{\}'"),
        (ROWS, {"extract": "("}, "task.options.extract: it is no regular expression"),
        (ROWS, {"verifier": "exakt"}, "verifier"),
        (ROWS, {"colum": "x"}, "there is no such key"),
    ],
)
def test_what_is_wrong_is_said_when_the_task_is_made(
    tmp_path: Path, rows: list[Any], options: dict[str, str], complaint: str
) -> None:
    path = jsonl(tmp_path / "d.jsonl", rows)
    with pytest.raises(ConfigError, match=complaint):
        made(path, **options)


def test_duplicates_and_leaks_may_be_dropped(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "d.jsonl", [*ROWS, *ROWS[:5]])
    task = made(path, duplicates="drop")
    assert len({*texts(task, "train", 99), *texts(task, "heldout", 99)}) == 40
    heldout = jsonl(tmp_path / "h.jsonl", [{**ROWS[3], "question": f" {ROWS[3]['question']}  "}])
    with pytest.raises(ConfigError, match=r"h\.jsonl:1: this held-out prompt is trained on too"):
        made(path, duplicates="drop", heldout=str(heldout))
    task = made(path, duplicates="drop", heldout=str(heldout), leaks="drop")
    assert len(set(texts(task, "train", 99))) == 39


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("absent.jsonl", None, "cannot read .*absent"),
        ("d.jsonl", b'{"a": 1', r"d\.jsonl:1: this is not JSON"),
        ("d.jsonl", b'{"a": "\xff"}', r"cannot read .*d\.jsonl"),
        ("d.jsonl", b"[" * 100_000, r"d\.jsonl:1: this is not JSON"),
        ("d.csv", b"question,question,answer\na,b,1\n", r"d\.csv:1: two columns have the same"),
        ("d.csv", b"question,answer\na,1,2\n", r"d\.csv:2: .* not as many cells"),
        ("d.csv", b"question,answer\na\n", r"d\.csv:2: .* not as many cells"),
        ("d.csv", b'question,answer\n"a,1\n', r"cannot read .*d\.csv"),
        ("d.parquet", b"PAR1nothing", r"cannot read .*d\.parquet"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        made(tmp_path / name)


def test_a_split_or_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = write(tmp_path / "folder")
    with pytest.raises(ConfigError, match=r"no split 'training'\. It has: train\."):
        made(folder, split="training")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot load the dataset .*empty"):
        made(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("it is 1,234.50 in all", "1234.5"),
        ("3/4", "3/4"),
        ("−7", "-7"),
        ("5-3", "3"),
        ("x = 2, 3", "3"),
        ("1/0", None),
        ("٣", None),
        ("none", None),
        ("9" * 5000, None),
    ],
)
def test_numbers_in_texts(text: str, value: str | None) -> None:
    found = number_in(text)
    assert (None if found is None else str(found)) == (
        None if value is None else str(number_in(value))
    )


def test_verifiers_and_extraction() -> None:
    assert VERIFIERS["exact"].compare("yes", " yes\n")
    assert not VERIFIERS["exact"].compare("yes", "Yes")
    assert VERIFIERS["regex"].compare(r"\d+ (cats|dogs)", " 12 dogs ")
    assert not VERIFIERS["regex"].compare(r"\d+ (cats|dogs)", "12 dogs and more")
    symbolic = VERIFIERS["symbolic"]
    assert symbolic.compare(r"\frac{1}{2}", r"so it is \boxed{0.5}.")
    assert symbolic.compare("0.5", r"\frac{2}{4}")
    assert not symbolic.compare("0.5", r"\boxed{9^{9^{9}}}")
    assert extracted(r"<a>(.*?)</a>", "<a>1</a> no: <a>2\n3</a>") == "2\n3"
    assert extracted(r"\d+", "1 2") == "2"
    assert extracted(r"<a>(.*?)</a>", "nothing") is None
    assert extracted("", "all of it") == "all of it"


def test_braces_and_several_columns(tmp_path: Path) -> None:
    rows = [{"a": i, "b": i / 2, "right": str(i)} for i in range(40)]
    task = make_task(
        f"dataset:{jsonl(tmp_path / 'd.jsonl', rows)}",
        {"prompt": "{{{a}}} and {b}", "answer": "right", "extract": r"\[(.*)\]"},
        0,
    )
    prompt: Prompt = task.prompt("train", 0)
    right = int(prompt.data["answer"])
    assert prompt.text == f"{{{right}}} and {right / 2}"
    assert [task.reward(prompt, text) for text in (f"[{right}]", str(right))] == [1, 0]  # type: ignore[arg-type]
