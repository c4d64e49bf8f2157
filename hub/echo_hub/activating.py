"""Decides every few seconds which nodes work, and says so; asks for more nodes, or for fewer.

The shell around `planner.roster` and `planner.scaling`. Promises: each change is in the ledger with
what it was decided by; nothing that fails here, a file of prices or an operator's program, stops
the run: it is in the log and on the dashboard; a wish waits for no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import trio
from pydantic import Field

from echo_hub import outward
from echo_hub.config import RunConfig
from echo_hub.ledger.ledger import Ledger
from echo_hub.planner.activation import Decision, Place
from echo_hub.planner.fleet import known_cards
from echo_hub.planner.roster import Looked, Mode, watts_of
from echo_hub.planner.scaling import Scaling, Wish
from echo_hub.publish.dissemination import Dissemination
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.front import Front
from echo_p2p.errors import ConfigError, IdentityError
from echo_p2p.identity import peer_id_of, public_key_of
from echo_p2p.nursery import open_nursery
from echo_p2p.toml import Strict, load_toml

if TYPE_CHECKING:
    from echo_hub.endpoints import Greeted
    from echo_hub.loop import LearnerLoop

log = logging.getLogger(__name__)

MOST_NAMED = 20
"""Nodes that an event names."""
_NOT_THEIR_FAULT = (Code.STALE, Code.WITHDRAWN, Code.BANNED)
_MOST_WISHES = 4


class _Prices(Strict):
    prices: dict[str, Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]]
    """Money an hour, by peer id."""


@dataclass(frozen=True)
class ActivationNow:
    """How activation stands, for people. `wish`: the last one, when it was made (Unix seconds), and
    what became of it; `trouble`: what is wrong with the file of prices."""

    mode: Mode
    decision: Decision | None
    places: Sequence[Place]
    wish: Wish | None = None
    wished_at: float | None = None
    outcome: str = ""
    trouble: str = ""


class Activating:
    """The controller's shell in one hub.

    Args:
        in_session: peer ids of the nodes that are there.
        greeted: what a node said of itself.
        clock: Unix seconds.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        root: Path,
        front: Front,
        ledger: Ledger,
        dissemination: Dissemination,
        in_session: Callable[[], Collection[str]],
        greeted: Callable[[str], Greeted | None],
        clock: Callable[[], float],
    ) -> None:
        section = self._section = config.activation
        self._run_id = config.run.id
        self._front, self._roster, self._ledger = front, front.roster, ledger
        self._in_session, self._greeted, self._clock = in_session, greeted, clock
        self._prices_file = root / section.prices if section.prices else None
        self._prices_seen: tuple[int, int] | None = None
        self._prices: Mapping[bytes, float] = {}
        self._trouble = ""
        self._watts = {name: row.watts for name, row in known_cards().items() if row.watts}
        self._watts_of: dict[bytes, float] = {}
        self._scaling = Scaling(
            after_s=section.scale_after_s,
            idle_s=section.scale_down_after_s,
            every_s=section.scale_every_s,
        )
        self._wish: Wish | None = None
        self._wished_at: float | None = None
        self._outcome = ""
        self._to_tell, self._wishes = trio.open_memory_channel[Wish](_MOST_WISHES)
        dissemination.on_obtained = front.roster.fetched

    async def run(self, loop: LearnerLoop) -> None:
        """Look every few seconds, until cancelled."""
        if self._roster.mode == "off":
            return
        async with open_nursery() as nursery:
            nursery.start_soon(self._follow, loop)
            nursery.start_soon(self._tell)
            while True:
                await trio.sleep(self._section.decide_s)
                await self.look()

    async def _follow(self, loop: LearnerLoop) -> None:
        """Tell the roster of each update but the first, which waited for nodes to join."""
        seen = max(1, len(loop.history))
        while True:
            for facts in loop.history[seen:]:
                busy_s = max(facts.train_s, facts.spent.training_s + facts.spent.auditing_s)
                self._roster.trained(busy_s, facts.period_s)
            seen = max(1, len(loop.history))
            await loop.changed()

    async def look(self) -> None:
        """Decide once. `run` does it every few seconds."""
        self._read_prices()
        front = self._front
        counts = front.snapshot(nodes=False)
        fault = {Code(code).value for code in _NOT_THEIR_FAULT}
        rejected = sum(n for code, n in counts.rollouts_rejected.items() if code not in fault)
        self._roster.judged(counts.rollouts_accepted, rejected)
        greeted = [one for one in map(self._greeted, tuple(self._in_session())) if one is not None]
        for one in greeted:
            if one.key not in self._watts_of:
                self._watts_of[one.key] = watts_of(one.engine, self._watts)
        here = [one.key for one in greeted if not front.is_banned(one.key)]
        looked = self._roster.look(here, self._traits, self._clock())
        if looked is None:
            return
        if self._roster.mode == "on" and (looked.to_work or looked.to_standby):
            await self._note(looked)
            front.wake()
        wish = self._scaling.look(looked.decision, self._roster.idle_rented, self._clock())
        if wish is not None:
            await self._make(wish)

    def _traits(self, key: bytes) -> tuple[float, float]:
        """A node's price and power."""
        return self._prices.get(key, 0.0), self._watts_of.get(key, 0.0)

    async def _note(self, looked: Looked) -> None:
        decision = looked.decision
        await self._ledger.record_event(
            "nodes_activated",
            to_work=_named(looked.to_work),
            to_standby=_named(looked.to_standby),
            started=len(looked.to_work),
            stopped=len(looked.to_standby),
            active=len(decision.active),
            standby=self._roster.on_standby,
            rate=round(decision.rate, 6),
            needed=round(decision.needed, 6),
            money=round(decision.money, 6),
            missing=decision.missing,
        )

    # --- prices -------------------------------------------------------------------------------

    def _read_prices(self) -> None:
        """Read the file of prices, if it changed; a wrong one changes nothing."""
        if self._prices_file is None:
            return
        try:
            status = self._prices_file.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen == self._prices_seen:
                return
            self._prices_seen = seen
            prices = load_toml(self._prices_file, _Prices).prices
            self._prices = {public_key_of(node): price for node, price in prices.items()}
            self._trouble = ""
            self._roster.repriced()
        except OSError as error:
            self._complain(f"{self._prices_file} cannot be read: {error.strerror}.")
        except (ConfigError, IdentityError) as error:
            self._complain(error.message)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("the prices stay as they were: %s", trouble)
        self._trouble = trouble

    # --- wishes -------------------------------------------------------------------------------

    async def _make(self, wish: Wish) -> None:
        section = self._section
        told = bool(section.scale_command or section.scale_webhook)
        self._wish, self._wished_at = wish, self._clock()
        self._outcome = "" if told else "nobody was told: activation.scale_command is not set"
        nodes = [peer_id_of(bytes.fromhex(key)) for key in wish.keys]
        await self._ledger.record_event(
            wish.wish, sentence=wish.sentence, count=wish.nodes, nodes=nodes[:MOST_NAMED], told=told
        )
        if told:
            try:
                self._to_tell.send_nowait(wish)
            except trio.WouldBlock:
                self._outcome = "not told: those before it are still under way"

    async def _tell(self) -> None:
        async for wish in self._wishes:
            section, failed = self._section, []
            body = self._body(wish)
            if section.scale_command:
                failed.append(await outward.start(section.scale_command, body))
            if section.scale_webhook:
                failed.append(await outward.post(section.scale_webhook, body))
            self._outcome = "; ".join(filter(None, failed)) or "told"
            if any(failed):
                log.warning("%s did not get through: %s", wish.wish, self._outcome)
                await self._ledger.record_event("scale_failed", wish=wish.wish, why=self._outcome)

    def _body(self, wish: Wish) -> str:
        """The wish as an operator's tool sees it (docs/planning.md)."""
        said = {
            "run": self._run_id,
            "wish": wish.wish,
            "sentence": wish.sentence,
            "count": wish.nodes,
            "rate_missing": wish.rate_missing,
            "nodes": [peer_id_of(bytes.fromhex(key)) for key in wish.keys],
        }
        return msgspec.json.encode(said).decode()

    def now(self) -> ActivationNow:
        """How it stands."""
        roster = self._roster
        return ActivationNow(
            mode=roster.mode,
            decision=roster.decision,
            places=roster.places(),
            wish=self._wish,
            wished_at=self._wished_at,
            outcome=self._outcome,
            trouble=self._trouble,
        )


def _named(keys: Collection[bytes]) -> list[str]:
    return [peer_id_of(key) for key in sorted(keys)[:MOST_NAMED]]
