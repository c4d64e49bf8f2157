"""Every attack there is: what a malicious node hands in, and what must become of it.

Each begins with an answer that would have been accepted, so it is the lie that is rejected.
"""

from __future__ import annotations

import attacks_on_answers
import attacks_on_envelopes
import attacks_on_leases
from attack_registry import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack", "attacks_on_answers", "attacks_on_envelopes", "attacks_on_leases"]
