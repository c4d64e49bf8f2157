"""How many signed 4 KB submissions a second does a hub verify and have on disk before the receipt?

Submissions are made and signed beforehand, each in answer to a lease of its own, and then handed
to `Front.submit` by many tasks at once, as the network does. Beside the rate stand its two bounds
on the same machine in the same run: Ed25519 verifications a second, and, as group commit shares
them among the submissions that wait, fsyncs a second.

    python benchmarks/ingest.py [--submissions N] [--concurrency N] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from echo_hub.config import RunConfig
from echo_hub.learner.messages import Audited
from echo_hub.ledger.ledger import Ledger
from echo_hub.models import addmix3_path
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.front import Front
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.tokens import Tokenizer
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.identity import Identity, verify
from echo_p2p.wire import (
    Lease,
    LeaseRequest,
    Receipt,
    Rollout,
    Submission,
    Submit,
    pack_logprobs,
    pack_tokens,
)

GROUP, TOKENS = 8, 64  # 8 rollouts of 64 tokens and log-probs: 4 KB
NODES = 8


@dataclass(frozen=True)
class Result:
    submissions: int
    concurrency: int
    bytes_each: int
    per_s: float
    receipt_p50_ms: float
    receipt_p99_ms: float
    verifications_per_s: float
    fsyncs_per_s: float


def run_config(submissions: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"id": "ingest"},
            "sampling": {"group_size": GROUP, "max_new_tokens": TOKENS},
            "learner": {"groups_per_update": submissions, "staleness": 0},
            "lease": {"groups_per_request": 1024, "seconds": 86400, "newcomer_share": 1.0},
        }
    )


async def audit(group: Group) -> Audited | None:
    return None


async def all_leases(front: Front, node: Identity, count: int) -> list[Lease]:
    leases: list[Lease] = []
    while len(leases) < count:
        want = min(1024, count - len(leases))
        request = LeaseRequest(run_id="ingest", version=0, groups=want, wait_s=0)
        grant = await front.request_leases(node.public_key, request)
        assert grant.leases
        leases += [open_envelope(data, Lease).message for data in grant.leases]
    return leases


def answer(node: Identity, lease: Lease, rng: random.Random) -> bytes:
    rollouts = tuple(
        Rollout(
            tokens=pack_tokens(rng.choices(range(4, 40), k=TOKENS)),
            logprobs=pack_logprobs([-rng.random() for _ in range(TOKENS)]),
            finish="length",
        )
        for _ in range(GROUP)
    )
    return seal(
        node,
        Submission(run_id="ingest", lease_id=lease.lease_id, version=0, rollouts=rollouts),
    )


async def hand_in(
    front: Front, work: list[tuple[Identity, bytes]], concurrency: int
) -> tuple[float, list[float]]:
    """Seconds in all, and seconds for each receipt."""
    waits: list[float] = []
    receipts: list[bytes] = []
    queue = iter(work)

    async def one_after_the_other() -> None:
        for node, envelope in queue:
            start = time.perf_counter()
            reply = await front.submit(node.public_key, Submit(envelope=envelope))
            waits.append(time.perf_counter() - start)
            receipts.append(reply.receipt)

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(one_after_the_other)
    seconds = time.perf_counter() - start
    assert all(open_envelope(receipt, Receipt).message.accepted for receipt in receipts)
    return seconds, waits


async def open_front(config: RunConfig, ledger: Ledger, scorers: Scorers) -> Front:
    """A hub's front of a new run, at version 0."""
    recovered = await ledger.recover()
    await ledger.begin()
    await ledger.record_publication(0, b"manifest")
    front = Front(
        config=config,
        identity=Identity.create(),
        ledger=ledger,
        scorers=scorers,
        tokenizer=Tokenizer.load(addmix3_path()),
        recovered=recovered,
        audit=audit,
    )
    front.advance(0, published=True)
    return front


async def answers(
    front: Front, submissions: int, rng: random.Random
) -> list[tuple[Identity, bytes]]:
    """So many submissions that are signed and not handed in yet, in no order."""
    work = [
        (node, answer(node, lease, rng))
        for node in [Identity.create() for _ in range(NODES)]
        for lease in await all_leases(front, node, submissions // NODES)
    ]
    rng.shuffle(work)
    return work


async def measure(submissions: int, concurrency: int, folder: Path) -> Result:
    config = run_config(submissions)
    async with Ledger.open(folder / "ledger.sqlite", "ingest") as ledger:
        async with open_scorers(config, addmix3_path()) as scorers:
            front = await open_front(config, ledger, scorers)
            work = await answers(front, submissions, random.Random(0))
        seconds, waits = await hand_in(front, work, concurrency)
    quantiles = statistics.quantiles(waits, n=100)
    return Result(
        submissions=len(work),
        concurrency=concurrency,
        bytes_each=len(work[0][1]),
        per_s=len(work) / seconds,
        receipt_p50_ms=1000 * quantiles[49],
        receipt_p99_ms=1000 * quantiles[98],
        verifications_per_s=verifications_per_s(work[0][1]),
        fsyncs_per_s=fsyncs_per_s(folder),
    )


def verifications_per_s(message: bytes, count: int = 3000) -> float:
    identity = Identity.create()
    signature = identity.sign(message)
    start = time.perf_counter()
    for _ in range(count):
        verify(identity.public_key, signature, message)
    return count / (time.perf_counter() - start)


def fsyncs_per_s(folder: Path, count: int = 300) -> float:
    with (folder / "fsync").open("wb", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(count):
            file.write(bytes(4096))
            os.fsync(file.fileno())
        return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=8000)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--folder", type=Path, help="where the ledger goes; a new one inside")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = trio.run(measure, args.submissions, args.concurrency, Path(folder))
    if args.json:
        print(json.dumps(asdict(result)))
        return
    print(
        f"{result.submissions} submissions of {result.bytes_each} bytes, on disk, receipts signed"
    )
    print(f"  ours                 {result.per_s:8.0f} /s, {result.concurrency} at a time")
    print(f"  a receipt            {result.receipt_p50_ms:8.1f} ms p50, "
          f"{result.receipt_p99_ms:.1f} ms p99")  # fmt: skip
    print(f"  bound: Ed25519       {result.verifications_per_s:8.0f} verifications/s, one thread")
    print(f"  bound: disk          {result.fsyncs_per_s:8.0f} fsyncs/s, shared by group commit")


if __name__ == "__main__":
    main()
