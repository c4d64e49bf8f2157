"""Which records a directory peer keeps and believes. Pure.

Invariants:

- A record lies under an id derived from its run id *and* its signer's key, so only the hub can
  write it, and whoever stores or reads it can tell without asking anyone.
- The expiry the DHT orders records by is the one that was signed: a replay cannot live longer.
- A record is small and cannot ask to be kept for long, and nothing else is stored at all.
- A record replaces another only if its version is no lower and its expiry is later. A hub gets
  both by taking every expiry from `next_expiry`.
"""

from __future__ import annotations

import hashlib

from echo_p2p.envelope import open_envelope
from echo_p2p.errors import DirectoryError, WireError
from echo_p2p.wire import KIB, RunRecord

MAX_RECORD_BYTES = 16 * KIB
MAX_LIFE_S = 3600.0
_EXPIRY_STEP_S = 0.001  # far above the resolution of a double at today's Unix time


def record_key(run_id: str, hub_key: bytes) -> str:
    """The name of a run's record."""
    return f"echo-p2p/run/{run_id}/{hub_key.hex()}"


def record_id(run_id: str, hub_key: bytes) -> bytes:
    """Where in the DHT's 160-bit space the record lies (hivemind hashes names with SHA-1)."""
    return hashlib.sha1(record_key(run_id, hub_key).encode(), usedforsecurity=False).digest()


def check_record(place: bytes, envelope: bytes, *, expiry: float, now: float) -> RunRecord:
    """The record in `envelope`, if it may lie at `place` until `expiry`.

    Raises:
        DirectoryError: it is anything else; the message says what.
    """
    if len(envelope) > MAX_RECORD_BYTES:
        raise DirectoryError(
            f"a record of {len(envelope)} bytes; the directory takes {MAX_RECORD_BYTES}."
        )
    try:
        opened = open_envelope(envelope, RunRecord)
    except WireError as error:
        raise DirectoryError(f"no run record: {error}") from error
    record = opened.message
    if record_id(record.run_id, opened.key) != place:
        raise DirectoryError(
            f"the record of run {record.run_id} signed by {opened.peer_id} lies in a place that "
            "is not its own."
        )
    if record.expires_at != expiry:
        raise DirectoryError(
            f"the record of run {record.run_id} is signed until {record.expires_at}, and was "
            f"given out until {expiry}."
        )
    if not now < expiry <= now + MAX_LIFE_S:
        raise DirectoryError(
            f"the record of run {record.run_id} ends in {expiry - now:.0f} s; the directory keeps "
            f"records that end within {MAX_LIFE_S:.0f} s."
        )
    return record


def newer(a: RunRecord, b: RunRecord) -> bool:
    """True if `a` says more recent things than `b`: the higher version, then the later expiry."""
    return (a.version, a.expires_at) > (b.version, b.expires_at)


def replaces(new: RunRecord, old: RunRecord) -> bool:
    """True if a peer that keeps `old` shall keep `new` in its place."""
    return new.version >= old.version and new.expires_at > old.expires_at


def next_expiry(*, previous: float, now: float, life_s: float) -> float:
    """The `expires_at` of a hub's next record: strictly after every one it signed before.

    Args:
        previous: the expiry of its last record; 0 if there was none.
        now: Unix time; may have been set back since.
        life_s: how long a record lives, at most `MAX_LIFE_S`.
    """
    return max(now + life_s, previous + _EXPIRY_STEP_S)
