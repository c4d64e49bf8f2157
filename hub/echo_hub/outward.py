"""Telling an operator's own tools something: a program that is started, a URL that is posted to.

Promises: neither takes longer than `DEADLINE_S`; no shell is involved; no redirect is followed and
no proxy used; what fails is returned as a sentence and raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from subprocess import DEVNULL

import httpx
import trio

DEADLINE_S = 20.0


async def post(url: str, body: str) -> str:
    """Post JSON; empty, or why it was not taken."""
    try:
        with trio.move_on_after(DEADLINE_S) as late:
            async with httpx.AsyncClient(
                timeout=DEADLINE_S, follow_redirects=False, trust_env=False
            ) as client:
                answer = await client.post(
                    url, content=body, headers={"content-type": "application/json"}
                )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"could not be posted: {str(error) or type(error).__name__}"
    if late.cancelled_caught:
        return f"was not taken within {DEADLINE_S:g} s"
    return "" if answer.status_code < 300 else f"was not taken: status {answer.status_code}"


async def start(command: Sequence[str], body: str) -> str:
    """Start a program with JSON on its standard input; empty, or what went wrong with it."""
    try:
        with trio.move_on_after(DEADLINE_S) as late:
            done = await trio.run_process(
                list(command), stdin=body.encode(), stdout=DEVNULL, stderr=DEVNULL, check=False
            )
    except (OSError, ValueError) as error:  # ValueError: of an argument with a null byte
        return f"{command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
    if late.cancelled_caught:
        return f"{command[0]} did not end within {DEADLINE_S:g} s, and was ended"
    return f"{command[0]} ended with {done.returncode}" if done.returncode else ""
