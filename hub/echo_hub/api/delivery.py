"""Sends alerts where the operator wants them: to a URL, to a program. Neither can hold up the hub.

Only so many alerts wait; what comes on top is dropped, with a warning in the log. A delivery that
fails is not tried again: the alert is on the dashboard, and comes again if it stays.
"""

from __future__ import annotations

import logging

import trio

from echo_hub.api.models import Alert
from echo_hub.config.dashboard import AlertsSection
from echo_hub.outward import post, start

log = logging.getLogger(__name__)

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
                self._complain(await post(self._rules.webhook, body))
            if self._rules.command:
                self._complain(await start(self._rules.command, body))

    @staticmethod
    def _complain(what: str) -> None:
        if what:
            log.warning("an alert did not get through: %s", what)
