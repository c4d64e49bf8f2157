"""What the guides say of messages and exit codes is what the programs do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_p2p import errors

ROOT = Path(__file__).parents[2]
NODES_DO_NOT_RAISE = {7, 10, 11, 12, 15}  # directory (never fatal), ledger, learner, demo, task


def exit_codes() -> set[int]:
    """Of every kind of error, and of success."""

    def below(kind: type[errors.EchoError]) -> Iterator[int]:
        yield kind.exit_code
        for subclass in kind.__subclasses__():
            yield from below(subclass)

    return {0, *below(errors.EchoError)}


@pytest.mark.parametrize(
    ("guide", "codes"),
    [("operator.md", exit_codes()), ("volunteer.md", exit_codes() - NODES_DO_NOT_RAISE)],
)
def test_the_lists_of_exit_codes_are_complete(guide: str, codes: set[int]) -> None:
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    listed = text[text.rindex("Exit codes") :].removeprefix("Exit codes").lstrip(":\n ")
    assert {int(code) for code in re.findall(r"(?:^|; |;\n)(\d+) ", listed)} == codes


def test_the_messages_in_the_volunteers_table_exist() -> None:
    text = (ROOT / "docs" / "volunteer.md").read_text(encoding="utf-8")
    table = text[text.index("| message |") :]
    messages = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert messages
    sources = "".join(
        path.read_text(encoding="utf-8")
        for package in ("echo_p2p", "node/echo_node")
        for path in (ROOT / package).rglob("*.py")
    )
    for message in messages:
        for piece in filter(None, (part.strip() for part in message.split("..."))):
            assert piece in sources, message
