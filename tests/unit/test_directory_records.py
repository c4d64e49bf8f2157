from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_p2p.directory.identity import ensure_directory_identity, libp2p_private_key
from echo_p2p.directory.records import (
    MAX_LIFE_S,
    MAX_RECORD_BYTES,
    check_record,
    newer,
    next_expiry,
    record_id,
    record_key,
    replaces,
)
from echo_p2p.envelope import seal
from echo_p2p.errors import DirectoryError, IdentityError
from echo_p2p.identity import Identity
from echo_p2p.wire import LatestRequest, Receipt, RunRecord, encode

HUB = Identity.from_seed(bytes(range(32)))
OTHER = Identity.from_seed(bytes(32))
PLACE = record_id("demo", HUB.public_key)
NOW = 1_800_000_000.0
EXPIRY = NOW + 600


def make(version: int = 3, expires_at: float = EXPIRY, run_id: str = "demo") -> RunRecord:
    return RunRecord(
        run_id=run_id,
        version=version,
        addresses=(f"/ip4/192.0.2.1/tcp/1/p2p/{HUB.peer_id}",),
        adapter=bytes(32),
        expires_at=expires_at,
    )


GOOD = seal(HUB, make())


def test_a_hub_s_record_is_good_in_its_place_until_it_ends() -> None:
    assert check_record(PLACE, GOOD, expiry=EXPIRY, now=NOW) == make()


def test_the_place_is_the_hash_of_the_name() -> None:
    name = record_key("demo", HUB.public_key)
    assert HUB.public_key.hex() in name
    assert hashlib.sha1(name.encode()).digest() == PLACE
    places = {
        record_id(run_id, key) for run_id in ("demo", "demo-2") for key in (b"k" * 32, b"l" * 32)
    }
    assert len(places) == 4


@pytest.mark.parametrize(
    ("place", "envelope", "expiry", "now", "why"),
    [
        (PLACE, seal(OTHER, make()), EXPIRY, NOW, "a place that is not its own"),
        (PLACE, seal(HUB, make(run_id="demo-2")), EXPIRY, NOW, "a place that is not its own"),
        (bytes(20), GOOD, EXPIRY, NOW, "a place that is not its own"),
        (b"", GOOD, EXPIRY, NOW, "a place that is not its own"),
        (PLACE, GOOD, EXPIRY + 1, NOW, "signed until"),
        (PLACE, GOOD, EXPIRY - 1, NOW, "signed until"),
        (PLACE, GOOD, float("inf"), NOW, "signed until"),
        (PLACE, GOOD, float("nan"), NOW, "signed until"),
        (PLACE, GOOD, EXPIRY, EXPIRY, "ends in 0 s"),
        (PLACE, GOOD, EXPIRY, EXPIRY + 60, "ends in -60 s"),
        (PLACE, GOOD, EXPIRY, EXPIRY - MAX_LIFE_S - 60, "ends in 3660 s"),
        (PLACE, b"", EXPIRY, NOW, "no run record"),
        (PLACE, b"hello", EXPIRY, NOW, "no run record"),
        (PLACE, GOOD[:-1], EXPIRY, NOW, "no run record"),
        (PLACE, GOOD + b"\0", EXPIRY, NOW, "no run record"),
        (PLACE, encode(make()), EXPIRY, NOW, "no run record"),
        (PLACE, encode(LatestRequest(run_id="demo")), EXPIRY, NOW, "no run record"),
        (PLACE, bytes(MAX_RECORD_BYTES + 1), EXPIRY, NOW, "the directory takes 16384"),
    ],
)
def test_every_other_record_is_refused(
    place: bytes, envelope: bytes, expiry: float, now: float, why: str
) -> None:
    with pytest.raises(DirectoryError, match=why):
        check_record(place, envelope, expiry=expiry, now=now)


def test_another_message_of_the_hub_is_no_record() -> None:
    receipt = Receipt(
        run_id="demo", lease_id=bytes(16), accepted=True, code="ok", sentence="", at=NOW
    )
    with pytest.raises(DirectoryError, match="no run record"):
        check_record(PLACE, seal(HUB, receipt), expiry=EXPIRY, now=NOW)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_one_way(envelope: bytes) -> None:
    with pytest.raises(DirectoryError):
        check_record(PLACE, envelope, expiry=EXPIRY, now=NOW)


@given(st.integers(0, len(GOOD) * 8 - 1))
def test_any_flipped_bit_is_refused(bit: int) -> None:
    envelope = bytearray(GOOD)
    envelope[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DirectoryError):
        check_record(PLACE, bytes(envelope), expiry=EXPIRY, now=NOW)


def test_the_highest_version_is_newer_whatever_its_expiry() -> None:
    assert newer(make(version=4, expires_at=EXPIRY - 100), make(version=3))
    assert not newer(make(version=3, expires_at=EXPIRY + 100), make(version=4))
    assert newer(make(expires_at=EXPIRY + 1), make())
    assert not newer(make(), make())


def test_a_record_is_replaced_by_no_lower_version_and_a_later_expiry_only() -> None:
    assert replaces(make(version=4, expires_at=EXPIRY + 1), make())
    assert replaces(make(expires_at=EXPIRY + 1), make())
    assert not replaces(make(version=2, expires_at=EXPIRY + 1), make())
    assert not replaces(make(version=4, expires_at=EXPIRY - 1), make())
    assert not replaces(make(version=4), make())
    assert not replaces(make(), make())


@given(
    start=st.floats(1e9, 3e9),
    steps=st.lists(st.floats(-7200, 7200), min_size=1, max_size=30),
    life_s=st.floats(1, MAX_LIFE_S),
)
def test_expiries_rise_whatever_the_clock_does(
    start: float, steps: list[float], life_s: float
) -> None:
    now, expiry = start, 0.0
    for version, step in enumerate(steps):
        now += step
        after = next_expiry(previous=expiry, now=now, life_s=life_s)
        assert after >= now + life_s
        assert replaces(make(version + 1, expires_at=after), make(version, expires_at=expiry)), (
            "a hub's next record replaces its last"
        )
        expiry = after


def test_with_a_steady_clock_a_record_lives_as_long_as_asked() -> None:
    first = next_expiry(previous=0.0, now=NOW, life_s=600)
    assert first == NOW + 600
    assert next_expiry(previous=first, now=NOW + 2, life_s=600) == NOW + 602


def test_the_directory_key_is_made_once_and_kept_to_ourselves(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "directory.key"
    peer_id = ensure_directory_identity(path)
    assert peer_id.startswith("12D3KooW")
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_directory_identity(path) == peer_id
    assert Identity.load(path).peer_id == peer_id
    path.chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        ensure_directory_identity(path)


def test_the_key_in_go_libp2p_s_encoding() -> None:
    """What py-libp2p writes for the same key; that p2pd reads it, the swarm tests show."""
    from libp2p.crypto.ed25519 import Ed25519PrivateKey

    theirs = Ed25519PrivateKey.from_bytes(HUB.seed)
    ours = libp2p_private_key(HUB)
    assert ours[:4] == bytes([8, 1, 18, 64])
    assert ours[4:] == HUB.seed + HUB.public_key
    assert theirs.get_public_key().to_bytes() == HUB.public_key
