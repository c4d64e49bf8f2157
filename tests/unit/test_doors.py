"""Keys of an address, allowances of rejections, the pace of nodes, and verdicts that wait."""

from __future__ import annotations

import pytest

from echo_hub.rollouts.doors import KEY_MEMORY_S, Allowances, KeysPerAddress, network_of
from echo_hub.rollouts.pace import Paces
from echo_hub.rollouts.verdicts import Verdicts
from echo_p2p.wire import MAX_VERDICTS, Receipt


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("", None),
    ],
)
def test_what_an_address_counts_as(address: str, network: str | None) -> None:
    assert network_of(address) == network


def test_an_address_brings_so_many_keys_and_others_have_their_own() -> None:
    keys = KeysPerAddress(2)
    assert [keys.admit(key(n), "192.0.2.7", 0.0) for n in range(3)] == [True, True, False]
    assert keys.admit(key(0), "192.0.2.7", 1.0)
    assert keys.admit(key(2), "192.0.2.8", 1.0)
    # those that have not been seen for an hour make room
    assert keys.admit(key(3), "192.0.2.7", KEY_MEMORY_S + 0.5)
    assert not keys.admit(key(4), "192.0.2.7", KEY_MEMORY_S + 0.5)
    assert all(keys.admit(key(n), "127.0.0.1", 0.0) for n in range(100))


def test_rejections_use_up_an_allowance_that_fills_again() -> None:
    allowances = Allowances(burst=3, per_s=2)
    assert [allowances.take(b"a", 0.0) for _ in range(3)] == [0.0] * 3
    assert [allowances.take(b"a", 0.0) for _ in range(2)] == [0.5, 1.0]  # one after the other
    assert allowances.take(b"b", 0.0) == 0.0
    assert allowances.take(b"a", 2.5) == 0.0
    for _ in range(100):
        assert allowances.take(b"c", 0.0) == 0.0
        allowances.refund(b"c", 0.0)  # what is accepted costs nothing


def test_a_node_may_hold_what_it_can_answer_in_half_of_a_leases_time() -> None:
    paces = Paces(lease_s=60.0, most=32)
    assert paces.limit(b"new") == 32
    for number in range(20):  # ten seconds each
        paces.answered(b"slow", 0.0, 10.0 * (number + 1))
        paces.answered(b"quick", 0.0, 0.1 * (number + 1))
        # its lease came only a second before: the time without one does not count
        paces.answered(b"idle", 100.0 * number, 100.0 * number + 1.0)
        paces.answered(b"dead slow", 0.0, 500.0 * (number + 1))
    assert [paces.limit(node) for node in (b"slow", b"quick", b"idle", b"dead slow")] == [
        3, 32, 30, 1,
    ]  # fmt: skip


def test_verdicts_wait_for_their_node_in_bounded_number() -> None:
    verdicts = Verdicts()
    for number in range(MAX_VERDICTS + 5):
        receipt = Receipt(
            run_id="run", lease_id=number.to_bytes(16, "big"), accepted=False,
            code="stale", sentence="", at=0.0,
        )  # fmt: skip
        verdicts.add(b"a", receipt)
    assert verdicts.take(b"b") == []
    told = verdicts.take(b"a")
    assert [int.from_bytes(one.lease_id, "big") for one in told] == list(range(5, MAX_VERDICTS + 5))
    assert verdicts.take(b"a") == []
