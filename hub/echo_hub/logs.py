"""The hub's log: every line of every library through one door, to stderr.

Promises: on a terminal a line is for people, elsewhere it is one JSON object (`at`, `level`,
`logger`, `event`, and what was given besides, like `trace`); no secret is in it: keys, tokens and
what follows "Bearer" are struck out, wherever they stand.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import IO, Any

from echo_hub.config.logs import LogsSection

_SECRET_NAMES = re.compile(
    r"(^|_)(token|secret|password|authorization|cookie|api_?key|private_key)$"
)
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.S),
    re.compile(r"(?i)(?<=bearer )[^\s\"']+"),
    re.compile(r"(?i)(?<=[?&]token=)[^\s&\"']+"),
)
_STRUCK = "[not shown]"


def configure(section: LogsSection, *, stream: IO[str] | None = None) -> None:
    """Send all logging to `stream` (stderr), as the section says."""
    import structlog

    out = stream or sys.stderr
    human = section.format == "human" or (section.format == "auto" and out.isatty())
    renderer: Any = structlog.processors.JSONRenderer(default=str)
    if human:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0)
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if human else "iso", utc=not human, key="at"
        ),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([] if human else [structlog.processors.format_exc_info]),
            without_secrets,
            renderer,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("echo_hub").setLevel(section.level.upper())
    logging.getLogger("echo_p2p").setLevel(section.level.upper())


def without_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line without what nobody should read."""
    for key, value in event.items():
        event[key] = _STRUCK if _SECRET_NAMES.search(key.lower()) else _clean(value)
    return event


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        for secret in _SECRETS:
            value = secret.sub(_STRUCK, value)
        return value
    if isinstance(value, dict):
        return {
            key: _STRUCK if _SECRET_NAMES.search(str(key).lower()) else _clean(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
