"""A learner of two processes does what one does, keeps what one keeps, and leaves nobody behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import trio
from engine_models import make_base
from learner_support import make_config
from safetensors.torch import load_file
from test_learner_client import audit_of

from echo_hub.audit.derive import Auditor
from echo_hub.config import RunConfig
from echo_hub.learner.batches import micro_batches, padded_tokens
from echo_hub.learner.client import Learner, open_learner
from echo_hub.learner.distributed import divide
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_p2p.errors import LearnerError, ProcessError

TARGETS = ("q_proj", "v_proj", "down_proj")


def config(**learner: Any) -> RunConfig:
    how = {"threads": 1, "target_modules": TARGETS, "microbatch_tokens": 60, **learner}
    return make_config(learner=how)


EVERYTHING = {
    "loss": "ppo", "advantage": "gae", "kl": 0.02, "correction": "decoupled",
    "steps_per_update": 2,
}  # fmt: skip
"""A value head, the reference, and a look ahead: more than one pass through the layers."""


def alone(base: Path, **learner: Any) -> Trainer:
    rules = config(**learner)
    return Trainer(Policy.load(base, rules.learner, dtype="float32", seed=0), rules)


@torch.no_grad()
def groups_of(policy: Policy, version: int, seed: int) -> list[TrainGroup]:
    """Seven groups of random answers, long and short, as the policy would have sampled them."""
    rng = random.Random(seed)
    groups = []
    for _ in range(7):
        prompt = [rng.randrange(1, 30) for _ in range(rng.randrange(2, 9))]
        rollouts = []
        for _ in range(4):
            tokens = [rng.randrange(1, 30) for _ in range(rng.randrange(1, 20))]
            logprobs = policy.logprobs([(prompt, tokens)]).tolist()
            rollouts.append(TrainRollout(tokens, logprobs, float(rng.random() < 0.5)))
        groups.append(TrainGroup(version, prompt, rollouts))
    return groups


@asynccontextmanager
async def two_ranks(
    base: Path, folder: Path, *, checkpoint: Path | None = None, **learner: Any
) -> AsyncIterator[Learner]:
    async with open_learner(
        config(devices=2, **learner).model_dump_json(),
        base=base,
        checkpoint=checkpoint,
        out=folder / "v0",
        deadline_s=300,
    ) as learner:
        yield learner


def assert_alike(ours: Path, theirs: Path) -> None:
    for name in ("adapter/adapter_model.safetensors", "state.safetensors"):
        one, other = load_file(ours / name), load_file(theirs / name)
        assert one.keys() == other.keys()
        for key in one.keys() - {"rng.cpu"}:
            torch.testing.assert_close(one[key], other[key], rtol=1e-3, atol=1e-5)


def uneven(group: TrainGroup) -> TrainGroup:
    """A group of three whose longest answer is too long for any other in its micro-batch."""
    source = max(group.rollouts, key=lambda rollout: len(rollout.tokens))
    cut = ((12, 0.0), (9, 1.0), (9, 1.0))
    rollouts = [TrainRollout(source.tokens[:n], source.logprobs[:n], r) for n, r in cut]
    return TrainGroup(group.version, group.prompt, rollouts)


def other_rank(learner: Learner) -> psutil.Process:
    (rank,) = psutil.Process(learner.pid).children()
    return rank


def test_one_process_then_two_then_one(tmp_path: Path):
    base = make_base(tmp_path / "base")
    trainer = alone(base)
    batches = [groups_of(trainer.policy, 0, seed) for seed in range(3)]
    trainer.train(batches[0], tmp_path / "v1")

    async def main() -> None:
        async with two_ranks(
            base, tmp_path, sharding="replicate", checkpoint=tmp_path / "v1"
        ) as learner:
            rank = other_rank(learner)
            bad = [TrainGroup(1, [1], [TrainRollout([10**6], [-1.0], r) for r in (0.0, 1.0)])]
            with pytest.raises(LearnerError, match="not in the vocabulary"):
                await learner.train(1, bad, out=tmp_path / "bad", deadline_s=300)
            trained = await learner.train(1, batches[1], out=tmp_path / "v2", deadline_s=300)
            expected = trainer.train(batches[1], tmp_path / "one2")
            for name in expected.keys() - {"seconds", "padding"}:
                assert trained.metrics[name] == pytest.approx(expected[name], abs=1e-5), name
            rank.kill()
            with pytest.raises(ProcessError, match=r"rank 1 of the learner ended with code -9"):
                await learner.train(2, batches[2], out=tmp_path / "v3", deadline_s=300)

    trio.run(main)
    assert_alike(tmp_path / "v2", tmp_path / "one2")
    again = alone(base)
    again.resume(tmp_path / "v2")
    found = again.train(batches[2], tmp_path / "v3")
    assert found["loss"] == pytest.approx(
        trainer.train(batches[2], tmp_path / "one3")["loss"], abs=1e-5
    )
    assert_alike(tmp_path / "v3", tmp_path / "one3")


def test_a_sharded_base_trains_and_audits_as_a_whole_one(tmp_path: Path):
    base = make_base(tmp_path / "base")
    trainer = alone(base, **EVERYTHING)
    trainer.save(tmp_path / "one0")
    batches = [groups_of(trainer.policy, 0, seed) for seed in range(2)]
    few = [uneven(batches[1][0])]
    lengths = [len(few[0].prompt) + len(rollout.tokens) for rollout in few[0].rollouts]
    rounds = [len(share) for share in divide(lengths, 60, 2, packed=trainer.policy.packs)]
    assert rounds == [1, 2]  # so that the first rank runs out of work

    async def main() -> None:
        async with two_ranks(base, tmp_path, sharding="shard", **EVERYTHING) as learner:
            for number, batch in enumerate([batches[0], few]):
                out = tmp_path / f"v{number + 1}"
                trained = await learner.train(number, batch, out=out, deadline_s=300)
                expected = trainer.train(batch, tmp_path / f"one{number + 1}")
                for name in expected.keys() - {"seconds", "padding"}:
                    assert trained.metrics[name] == pytest.approx(expected[name], abs=1e-5), name
            adapter = tmp_path / "v2" / "adapter"
            audit = audit_of(batches[1][0], adapter)
            audited = await learner.audit(audit, deadline_s=300)
            known = Auditor(trainer.policy).derive(audit)
            assert (audited.tokens, audited.mismatches) == (known.tokens, known.mismatches)
            assert audited.bits == pytest.approx(known.bits, rel=1e-4)
            assert audited.max_logprob_difference == pytest.approx(
                known.max_logprob_difference, abs=1e-4
            )
            rank = other_rank(learner)
            os.kill(learner.pid, signal.SIGKILL)
            await trio.to_thread.run_sync(rank.wait, 60)

    trio.run(main)
    assert_alike(tmp_path / "v2", tmp_path / "one2")


PARENT = """
import sys, trio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_learner_ranks import alone, groups_of, two_ranks

async def main(base, folder):
    groups = groups_of(alone(base).policy, 0, 0) * 400
    async with two_ranks(base, folder, sharding="shard") as learner:
        print(learner.pid, flush=True)
        await learner.train(0, groups, out=folder / "v1", deadline_s=300)
        print("trained", flush=True)

trio.run(main, Path(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.mark.slow
def test_the_ranks_of_a_killed_hub_end_in_mid_update(tmp_path: Path):
    base = make_base(tmp_path / "base")
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PARENT, here, str(base), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        first = psutil.Process(int(hub.stdout.readline()))
        (other,) = first.children()
        idle = other.cpu_times().user
        while other.cpu_times().user < idle + 1.0:  # a second of work: well into the update
            time.sleep(0.05)
        hub.kill()
        assert "trained" not in hub.stdout.read()
    assert not psutil.wait_procs([first, other], timeout=60)[1]
    assert not (tmp_path / "v1").exists()


def test_micro_batches_are_divided_by_tokens():
    rng = random.Random(0)
    for _ in range(300):
        lengths = [rng.randrange(1, 200) for _ in range(rng.randrange(0, 60))]
        ranks, budget, packed = rng.randrange(1, 9), rng.randrange(1, 600), rng.random() < 0.5
        shares = divide(lengths, budget, ranks, packed=packed)
        assert len(shares) == ranks
        assert sorted(i for share in shares for batch in share for i in batch) == [
            *range(len(lengths))
        ]
        sizes = [
            [padded_tokens([lengths[i] for i in batch], packed=packed) for batch in share]
            for share in shares
        ]
        largest = max((size for share in sizes for size in share), default=0)
        assert largest <= max([budget, *lengths]) or not lengths
        tokens = [sum(share) for share in sizes]
        assert max(tokens) - min(tokens) <= largest


def test_each_rank_gets_work_from_what_one_micro_batch_would_hold():
    lengths = [10] * 16
    assert len(micro_batches(lengths, 8192)) == 1
    assert [sum(map(len, share)) for share in divide(lengths, 8192, 4)] == [4, 4, 4, 4]
