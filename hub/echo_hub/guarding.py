"""The hub's side of the guard: what becomes of a batch that was refused, and of the run.

Promises: of a refused batch all that was never audited is audited. False groups in it explain the
refusal: they are rejected, and the others are trained on. If there are none the batch is dropped,
with its reason code, and its nodes lose nothing of their standing. An event in the ledger says why.
Setbacks that no retry mends pause the run (`Setbacks`):
nodes stay connected and get work as far as leases allow, and no update is made until an operator
resumes the run. A pause outlives the hub's process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from echo_hub.learner.guard import Why
from echo_hub.ledger.guard import REFUSED, GuardState, Pause
from echo_hub.ledger.ledger import Ledger
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.front import Front
from echo_hub.setbacks import Setbacks
from echo_p2p.errors import EchoError, LedgerError, UpdateRefusedError

log = logging.getLogger(__name__)

NOT_PAUSED = "the run is not paused."
RESUME = "Let it go on with: echo-hub resume RUN"


@dataclass(frozen=True)
class Notice:
    """Something an operator should see: `kind` and `facts` for programs, `sentence` for people."""

    kind: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


class Guarding:
    """Refusals, deaths of the learner, and pauses of one run. `on_news` hears of each notice."""

    def __init__(
        self,
        *,
        front: Front,
        ledger: Ledger,
        recovered: GuardState,
        refusals: int,
        clock: Callable[[], float],
        on_news: Callable[[], None],
    ) -> None:
        self.pause = recovered.pause
        self.notices: list[Notice] = []
        if self.pause is not None:
            self.notices.append(_paused(self.pause))
        self._news = trio.Event()
        self._resumed_at = recovered.resumed_at
        self._setbacks = Setbacks(refusals)
        self._front = front
        self._ledger = ledger
        self._clock = clock
        self._on_news = on_news

    def forgets(self, version: int) -> bool:
        """Whether the update from `version` is the first after an operator let the run go on: then
        it is not compared with what was before."""
        return version == self._resumed_at

    def applied(self) -> None:
        """An update was applied."""
        self._setbacks.applied()

    async def refused(
        self, version: int, groups: Sequence[ScoredGroup], error: EchoError
    ) -> int | None:
        """The update from `version` was refused: look at its batch, and drop it if nobody's lies
        explain that. The version to go back to, if the one it started from is not good either."""
        refusal = error if isinstance(error, UpdateRefusedError) else None
        why = Why.BAD_BATCH.value if refusal is None else refusal.why
        false = await self._front.look_again(groups)
        if false:
            self._setbacks.explained()
            await self._refuse(version, groups, why, _explained(error.message, false), false)
            return None
        await self._drop(version, groups, why, error.message)
        if self._setbacks.refused():
            await self.pause_at(
                version,
                f"{self._setbacks.in_a_row} updates in a row were refused, the last one because: "
                f"{error.message}",
            )
        return None if refusal is None else refusal.back_to

    async def died(self, version: int, groups: Sequence[ScoredGroup], error: EchoError) -> bool:
        """The learner died on a batch. True if it is to be tried again."""
        why, *words = error.message.strip().splitlines()
        if words and "code -" not in why:  # by a signal it has no last words
            why = f"{why} {words[-1]}"
        await self._tell("learner_died", f"the learner died: {why}", version=version, why=why)
        if not self._setbacks.died():
            return True
        await self._drop(version, groups, Why.LEARNER_DIED.value, error.message)
        await self.pause_at(version, f"the learner died again and again on one batch: {why}")
        return False

    async def returned(self, version: int, to: int, *, by_operator: bool = False) -> None:
        """The learner has the weights of version `to` again, as `version`."""
        await self._tell(
            "rolled_back",
            f"version {version} has the weights of version {to}; rollouts of those between are not "
            "trained on.",
            version=version,
            to=to,
        )
        if self.pause is not None:  # it goes on from there
            self.pause = replace(self.pause, version=version)
            await self._ledger.pause(self.pause)
        if not by_operator and self._setbacks.returned(to):
            await self.pause_at(version, f"the reward collapsed again and again after version {to}")

    async def pause_at(self, version: int, why: str) -> None:
        """Pause the run."""
        self.pause = Pause(version, f"{why.rstrip('.')}.", self._clock())
        await self._ledger.pause(self.pause)
        log.warning("paused: %s", why)
        await self._ledger.record_event("paused", version=version, why=why)
        self.notices.append(_paused(self.pause))
        self._on_news()

    async def until_resumed(self, gives_way: Callable[[], bool]) -> bool:
        """Wait until an operator lets the run go on, or until it `gives_way` (see `wake`)."""
        while self.pause is not None and not gives_way():
            await self._news.wait()
        return True

    def wake(self) -> None:
        """Let `until_resumed` look again."""
        self._news.set()
        self._news = trio.Event()

    async def resume(self) -> int:
        """Let the paused run go on; the version it goes on from. LedgerError if it is not
        paused."""
        if self.pause is None:
            raise LedgerError(NOT_PAUSED, fix="`echo-hub status RUN` says how it is.")
        version = self.pause.version
        await self._ledger.resume(version)
        self.pause, self._resumed_at = None, version
        self._setbacks.forgiven()
        self.wake()
        await self._tell("resumed", "an operator let the run go on.", version=version)
        return version

    async def _drop(
        self, version: int, groups: Sequence[ScoredGroup], why: str, sentence: str
    ) -> None:
        await self._front.refuse_batch(groups, Code.LEARNER_REFUSED)
        await self._refuse(version, groups, why, sentence, [])

    async def _refuse(
        self,
        version: int,
        groups: Sequence[ScoredGroup],
        why: str,
        sentence: str,
        false: Sequence[int],
    ) -> None:
        """Let it be known: the `groups` of a refused update, and those that an audit found false
        then."""
        log.error("update %d was refused: %s", version + 1, sentence)
        ids = [group.group_id for group in groups]
        await self._ledger.record_event(
            REFUSED, version=version + 1, why=why, sentence=sentence, groups=ids, false=list(false)
        )
        facts = {"version": version + 1, "why": why, "groups": len(ids), "false": len(false)}
        self._notice("refused", sentence, **facts)

    async def _tell(self, kind: str, sentence: str, **facts: Any) -> None:
        log.warning("%s", sentence)
        await self._ledger.record_event(kind, **facts)
        self._notice(kind, sentence, **facts)

    def _notice(self, kind: str, sentence: str, **facts: Any) -> None:
        self.notices.append(Notice(kind, sentence, facts | {"sentence": sentence}))
        self._on_news()


def _explained(sentence: str, false: Sequence[int]) -> str:
    found = "1 of its groups was" if len(false) == 1 else f"{len(false)} of its groups were"
    return f"{sentence} {found} then found false by an audit, and left out."


def _paused(pause: Pause) -> Notice:
    sentence = f"{pause.why} {RESUME}"
    facts = {"version": pause.version, "why": pause.why, "sentence": sentence}
    return Notice("paused", sentence, facts)
