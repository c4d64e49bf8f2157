"""A refused batch is looked at again: what of it was never audited is audited now.

What an update is refused for (false log-probabilities, above all) may be the doing of a node whose
long standing spares most of its groups an audit. Promises: a group that this finds false is
rejected, and costs its node what any false group does. If there is one, it explains the refusal,
and what could not be audited is dropped too; if there is none, nothing is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from echo_hub.ledger.ledger import Ledger
from echo_hub.rollouts.assess import Assessor, Group
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.checks import Code, Rejection
from echo_hub.rollouts.keeper import Keeper
from echo_p2p.wire import Sampling


class SecondLook:
    """Looks at refused batches. `drop` rejects a group."""

    def __init__(
        self,
        *,
        assessor: Assessor,
        keeper: Keeper,
        ledger: Ledger,
        sampling: Sampling,
        drop: Callable[[Group, Rejection], Awaitable[None]],
    ) -> None:
        self._assessor = assessor
        self._keeper = keeper
        self._ledger = ledger
        self._sampling = sampling
        self._drop = drop

    async def look(self, batch: Sequence[ScoredGroup]) -> tuple[list[int], list[ScoredGroup]]:
        """Of a refused batch: the ids of its false groups, and the groups that are still fit to be
        trained on."""
        scored = {group.group_id: group for group in batch}
        stored = await self._ledger.stored_groups(list(scored))
        groups = {
            one.group_id: replace(
                Group.recovered(one, self._sampling), prompt=scored[one.group_id].prompt
            )
            for one in stored
        }
        rejected = await self._judge([groups[one.group_id] for one in stored if not one.audited])
        for number, group in groups.items():  # by its other groups, perhaps
            if self._keeper.reputation.banned(group.lease.node):
                rejected.setdefault(number, Rejection(Code.BANNED))
        false = [n for n, rejection in rejected.items() if rejection.code is not Code.NOT_AUDITED]
        if false:
            for number, rejection in rejected.items():
                await self._drop(groups[number], rejection)
        return false, [group for group in batch if group.group_id not in rejected]

    async def _judge(self, groups: Sequence[Group]) -> dict[int, Rejection]:
        """Audit groups, and judge their nodes by what is found: those that did not pass."""
        rejected, passed = dict[int, Rejection](), list[int]()
        for assessed in await self._assessor.audit_now(groups):
            verdict = await self._keeper.judge(assessed)
            if isinstance(verdict, Rejection):
                rejected[assessed.group.group_id] = verdict
            else:
                passed.append(assessed.group.group_id)
        await self._ledger.set_audited(passed)
        return rejected
