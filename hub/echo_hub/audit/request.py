"""Asks the learner process to derive a group again under the version it claims."""

from __future__ import annotations

import logging

from echo_hub.learner.client import Learner
from echo_hub.learner.messages import Audit, Audited
from echo_hub.paths import RunFolder
from echo_hub.rollouts.assess import Audit as AuditCall
from echo_hub.rollouts.assess import Group
from echo_p2p.errors import EchoError, LearnerError, ProcessError

AUDIT_DEADLINE_S = 900.0
_TRIES = 3  # of a learner that dies over it, or died over something else

log = logging.getLogger(__name__)


def audit_with(learner: Learner, folder: RunFolder) -> AuditCall:
    """The audit that the front calls. None if the version's adapter is no longer on disk."""

    async def audit(group: Group) -> Audited | None:
        adapter = folder.adapter(group.version)
        if not adapter.is_dir():
            return None
        command = Audit(
            version=group.version,
            adapter=str(adapter),
            prompt=group.prompt,
            seed=group.seed,
            temperature=group.sampling.temperature,
            top_k=group.sampling.top_k,
            top_p=group.sampling.top_p,
            rollouts=group.rollouts,
        )
        for _ in range(_TRIES):
            try:
                return await learner.audit(command, deadline_s=AUDIT_DEADLINE_S)
            except ProcessError as error:  # the learner begins again with the next command
                why: EchoError = error
            except LearnerError as error:
                why = error
                break
        log.warning("a group of version %d could not be audited: %s", group.version, why)
        return None

    return audit
