"""Whose lease, when, how often, and for which version: answers to what was not asked."""

from __future__ import annotations

import secrets

from attack_registry import attack, lie
from attack_support import Arena
from attacks_on_answers import logprob, logprobs_made_up
from msgspec.structs import replace

from echo_hub.rollouts.checks import Code
from echo_p2p.envelope import seal
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import Submission


@attack("wrong_signer")
async def own_lease_signed_by_another_key(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    return [(await arena.attacker.send(seal(arena.accomplice.identity, honest))).code]


@attack("wrong_signer", "accepted")
async def envelope_of_another_node_handed_in_before_it(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.honest)
    stolen = await arena.attacker.send(seal(arena.honest.identity, honest))
    return [stolen.code, await arena.outcome(arena.honest, honest)]


lie("wrong run", Code.WRONG_RUN, lambda honest: replace(honest, run_id="another-run"))


def with_made_up_lease(honest: Submission) -> Submission:
    return replace(honest, lease_id=secrets.token_bytes(16))


lie("lease made up", Code.UNKNOWN_LEASE, with_made_up_lease)


@attack("foreign_lease", "accepted")
async def lease_of_another_node(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.honest)
    return [await arena.outcome(node, honest) for node in (arena.attacker, arena.honest)]


@attack("accepted", "foreign_lease")
async def lease_that_another_node_has_answered(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.honest)
    return [await arena.outcome(node, honest) for node in (arena.honest, arena.attacker)]


@attack("accepted", "duplicate")
async def repeated(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    return [await arena.outcome(arena.attacker, honest) for _ in range(2)]


@attack("accepted", *["duplicate"] * 4)
async def handed_in_five_times_at_once(arena: Arena) -> list[str]:
    envelope = seal(arena.attacker.identity, await arena.ready(arena.attacker))
    codes: list[str] = []

    async def send() -> None:
        codes.append((await arena.attacker.send(envelope)).code)

    async with open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(send)
    return sorted(codes)


@attack("audit_logprob", "duplicate")
async def put_right_after_the_audit(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    lies = logprobs_made_up(honest)
    return [await arena.outcome(arena.attacker, one) for one in (lies, honest)]


@attack("expired_lease")
async def late_and_the_hub_has_not_noticed(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    await arena.let_leases_expire()
    return [await arena.outcome(arena.attacker, honest)]


@attack("expired_lease")
async def late_and_the_lease_was_taken_back(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    await arena.let_leases_expire()
    await arena.until(lambda snapshot: not snapshot.running)
    return [await arena.outcome(arena.attacker, honest)]


@attack("expired_lease")
async def given_back_and_then_answered(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    await arena.attacker.hub.give_back([honest.lease_id])
    return [await arena.outcome(arena.attacker, honest)]


@attack("bad_logprobs", "expired_lease")
async def put_right_after_a_bad_answer(arena: Arena) -> list[str]:
    honest = await arena.ready(arena.attacker)
    lies = logprob(float("nan"))(honest)
    return [await arena.outcome(arena.attacker, one) for one in (lies, honest)]


lie("version to come", Code.UNPUBLISHED_VERSION, lambda honest: replace(honest, version=1))
lie("version far off", Code.UNPUBLISHED_VERSION, lambda honest: replace(honest, version=2**31 - 1))


@attack("version_out_of_window", rollouts=1)
async def newer_version_than_an_evaluation_asks_for(arena: Arena) -> list[str]:
    async with open_nursery() as nursery:
        nursery.start_soon(arena.hub.front.evaluate, 0, 1)
        await arena.until(lambda snapshot: 0 in snapshot.evaluating)
        (lease,) = await arena.attacker.leases(1)
        assert lease.max_version == 0
        (honest,) = await arena.answers([lease])
        codes = [await arena.outcome(arena.attacker, replace(honest, version=1))]
        nursery.cancel_scope.cancel()
    return codes
