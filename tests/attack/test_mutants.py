"""Each check of the hub is needed: without it, an attack of its code is not rejected with it.

So no test of `test_attacks` passes for another reason than the check it is there for. The check
of staleness has its own in `test_staleness`, that of versions taken back in `test_poison`.
"""

from __future__ import annotations

import pytest
from attack_support import Arena
from attacks import ATTACKS, Attack
from mutants import CHECKS, Check

from echo_hub.rollouts.assess import Assessed, Assessor, Group
from echo_hub.rollouts.checks import Code, Rejection
from echo_p2p import envelope
from echo_p2p.errors import PeerRefusedError

ELSEWHERE = {Code.STALE, Code.WITHDRAWN}
AUDITS = (Code.AUDIT_MARGIN, Code.AUDIT_LOGPROB)


def test_every_check_has_an_attack_and_every_attack_a_check() -> None:
    assert {check.code for check in CHECKS} == {attack.code for attack in ATTACKS} | ELSEWHERE


@pytest.mark.parametrize("check", [one for one in CHECKS if one.code not in ELSEWHERE], ids=str)
def test_without_a_check_an_attack_of_its_code_gets_further(
    arena: Arena, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check.code not in AUDITS:
        monkeypatch.setattr(Assessor, "assess", no_further)
    check.remove(monkeypatch)
    arena.run(one_gets_further, arena, check.code)


def test_without_the_signature_check_a_changed_token_gets_further(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Assessor, "assess", no_further)
    monkeypatch.setattr(envelope, "verify", lambda *_: True)
    arena.run(one_gets_further, arena, Code.BAD_SIGNATURE)


async def no_further(_: Assessor, group: Group) -> Assessed:
    """What should have been rejected goes neither to the learner nor to its auditor."""
    return Assessed(group, Rejection(Code.INTERRUPTED))


async def one_gets_further(arena: Arena, code: Code) -> None:
    outcomes = {str(one): await outcome(arena, one) for one in ATTACKS if one.code is code}
    await arena.settled()
    assert any(code not in found for found in outcomes.values()), outcomes


async def outcome(arena: Arena, attack: Attack) -> list[str]:
    try:
        return await attack.act(arena)
    except PeerRefusedError as refusal:
        return [f"refused: {refusal.code}"]
