"""Sends alerts where the operator wants them: to a URL, to a program. Neither can hold up the hub.

Only so many alerts wait; what comes on top is dropped, with a warning in the log. A delivery that
fails is not tried again: the alert is on the dashboard, and comes again if it stays.
"""

from __future__ import annotations

import logging
from subprocess import DEVNULL

import httpx
import trio

from echo_hub.api.models import Alert
from echo_hub.config.dashboard import AlertsSection

log = logging.getLogger(__name__)

DEADLINE_S = 20.0
_MOST_WAITING = 32


class Delivery:
    """Alerts on their way out, of the run `run`."""

    def __init__(self, rules: AlertsSection, run: str) -> None:
        self._rules = rules
        self._run = run
        self._to_send, self._waiting = trio.open_memory_channel[Alert](_MOST_WAITING)

    def send(self, alert: Alert) -> None:
        """Send an alert soon."""
        log.warning("alert %s: %s", alert.kind, alert.sentence)
        try:
            self._to_send.send_nowait(alert)
        except trio.WouldBlock:
            log.warning("alert %s is not sent: too many wait already", alert.kind)

    def close(self) -> None:
        """No more alerts come: `run` ends with those that wait."""
        self._to_send.close()

    async def run(self) -> None:
        """Send what comes, one after the other, until closed or cancelled."""
        async for alert in self._waiting:
            body = alert.model_dump_json().replace("{", f'{{"run":"{self._run}",', 1)
            if self._rules.webhook:
                await self._post(body)
            if self._rules.command:
                await self._start(body)

    async def _post(self, body: str) -> None:
        try:
            async with httpx.AsyncClient(
                timeout=DEADLINE_S, follow_redirects=False, trust_env=False
            ) as client:
                answer = await client.post(
                    self._rules.webhook, content=body, headers={"content-type": "application/json"}
                )
        except httpx.HTTPError as error:
            log.warning("an alert could not be posted: %s", error or type(error).__name__)
            return
        if answer.status_code >= 300:
            log.warning("an alert was not taken: status %d", answer.status_code)

    async def _start(self, body: str) -> None:
        try:
            with trio.move_on_after(DEADLINE_S) as late:
                done = await trio.run_process(
                    self._rules.command,
                    stdin=body.encode(),
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                )
        except OSError as error:
            log.warning("alerts.command cannot be started: %s", error.strerror)
            return
        if late.cancelled_caught:
            log.warning("alerts.command did not end within %g s, and was ended", DEADLINE_S)
        elif done.returncode:
            log.warning("alerts.command ended with %d", done.returncode)
