"""From an audit's evidence to a verdict. Pure."""

from __future__ import annotations

from echo_hub.checks import Code
from echo_hub.config import AuditSection
from echo_hub.learner.messages import Audited


def verdict(evidence: Audited, limits: AuditSection) -> Code | None:
    """The reason code that condemns a group, or None. What is not a number condemns."""
    if not evidence.max_margin <= limits.max_margin:
        return Code.AUDIT_MARGIN
    if not evidence.max_logprob_difference <= limits.max_logprob_difference:
        return Code.AUDIT_LOGPROB
    return None
