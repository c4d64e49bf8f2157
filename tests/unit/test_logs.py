"""The hub's log: for people on a terminal, JSON elsewhere, and no secret in either."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from echo_hub import logs
from echo_hub.config.logs import LogsSection
from echo_p2p.identity import Identity

log = logging.getLogger("echo_hub.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("echo_hub", "echo_p2p"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_off_a_terminal_with_what_was_given_besides() -> None:
    out = io.StringIO()
    logs.configure(LogsSection(level="info"), stream=out)
    log.info("left out: %s", "stale", extra={"trace": "ab" * 16})
    log.debug("not this one")
    logging.getLogger("hypercorn").warning("of a library")
    first, second = lines(out)
    assert first["event"] == "left out: stale"
    assert (first["level"], first["logger"], first["trace"]) == ("info", "echo_hub.test", "ab" * 16)
    assert first["at"].startswith("20")
    assert second["event"] == "of a library"


def test_an_error_is_one_line_with_its_trace() -> None:
    out = io.StringIO()
    logs.configure(LogsSection(), stream=out)
    try:
        int("no number")
    except ValueError:
        log.exception("it failed")
    (line,) = lines(out)
    assert "ValueError: invalid literal" in line["exception"]


def test_people_read_no_json() -> None:
    out = Terminal()
    logs.configure(LogsSection(level="debug"), stream=out)
    log.debug("leased", extra={"trace": "cd" * 16})
    assert "leased" in out.getvalue()
    assert "cd" * 16 in out.getvalue()
    assert not out.getvalue().startswith("{")


@pytest.mark.parametrize("form", ["json", "human"])
def test_secrets_are_struck_out(form: Any) -> None:
    out = io.StringIO()
    logs.configure(LogsSection(format=form), stream=out)
    pem = Identity.from_seed(b"s" * 32).export().decode()
    log.warning("the key is %s", pem)
    log.warning("asked with Authorization: Bearer s3cr3t-t0ken and ?token=0ther&x=1")
    log.warning("logged in", extra={"token": "s3cr3t-t0ken", "headers": {"cookie": "s3cr3t-t0ken"}})
    log.warning("an update", extra={"tokens": 10240})
    text = out.getvalue()
    assert pem.splitlines()[1] not in text
    assert "s3cr3t" not in text
    assert "0ther" not in text
    assert text.count("[not shown]") == 5
    assert "10240" in text
