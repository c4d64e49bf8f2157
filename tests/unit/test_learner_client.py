"""The learner in its own process: commands, refusals, death."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from learner_support import load_policy, make_config, scored, seeded_groups

from echo_hub.learner.client import Learner, open_learner
from echo_hub.learner.messages import Audit, AuditRollout, TrainGroup
from echo_hub.models import addmix3_path
from echo_p2p.errors import LearnerError, ProcessError

CONFIG = make_config(learner={"threads": 1})


@pytest.fixture(scope="module")
def groups() -> list[TrainGroup]:
    sampled = seeded_groups(load_policy(CONFIG), random.Random(5), 4)
    return [scored(group, 0) for group in sampled]


@asynccontextmanager
async def learner_in(folder: Path, checkpoint: Path | None = None) -> AsyncIterator[Learner]:
    async with open_learner(
        CONFIG.model_dump_json(),
        base=addmix3_path(),
        checkpoint=checkpoint,
        out=folder / "v0",
        deadline_s=90,
    ) as learner:
        yield learner


def audit_of(group: TrainGroup, adapter: Path) -> Audit:
    return Audit(
        version=0,
        adapter=str(adapter),
        prompt=group.prompt,
        seed=1,
        temperature=1.0,
        rollouts=[AuditRollout(r.tokens, r.logprobs) for r in group.rollouts],
    )


def test_train_audit_and_resume(groups: list[TrainGroup], tmp_path: Path):
    async def main() -> None:
        async with learner_in(tmp_path) as learner:
            assert (learner.version, learner.trainable) == (0, 112128)
            trained = await learner.train(0, groups, out=tmp_path / "v1", deadline_s=60)
            assert (trained.version, learner.version) == (1, 1)
            assert trained.metrics["trained_rollouts"] > 0
            with pytest.raises(LearnerError, match="update of version 0"):
                await learner.train(0, groups, out=tmp_path / "v2", deadline_s=60)
            audited = await learner.audit(
                audit_of(groups[0], tmp_path / "v0" / "adapter"), deadline_s=60
            )
            assert audited.tokens == sum(len(r.tokens) for r in groups[0].rollouts)
            with pytest.raises(LearnerError, match="cannot read"):
                await learner.audit(audit_of(groups[0], tmp_path / "nowhere"), deadline_s=60)
        async with learner_in(tmp_path, tmp_path / "v1") as learner:
            assert learner.version == 1
            trained = await learner.train(1, groups, out=tmp_path / "v2", deadline_s=60)
            assert trained.metrics["lag_max"] == 1.0

    trio.run(main)


def test_a_learner_that_dies_is_a_process_error(groups: list[TrainGroup], tmp_path: Path):
    async def main() -> None:
        async with learner_in(tmp_path) as learner:
            os.kill(learner.pid, signal.SIGKILL)
            for _ in range(2):
                with pytest.raises(ProcessError):
                    await learner.train(0, groups, out=tmp_path / "v1", deadline_s=60)

    trio.run(main)
    assert {path.name for path in tmp_path.iterdir()} == {"v0"}


def test_a_command_given_up_on_ends_the_conversation(groups: list[TrainGroup], tmp_path: Path):
    async def main() -> None:
        async with learner_in(tmp_path) as learner:
            audit = audit_of(groups[0], tmp_path / "v0" / "adapter")
            with trio.CancelScope() as scope:
                scope.cancel()  # before it was sent: no harm done
                await learner.audit(audit, deadline_s=60)
            await learner.audit(audit, deadline_s=60)
            with pytest.raises(ProcessError, match="did not answer"):
                await learner.audit(audit, deadline_s=0)
            with pytest.raises(ProcessError, match="given up on"):
                await learner.audit(audit, deadline_s=60)

    trio.run(main)


def test_a_start_that_fails_is_a_learner_error(tmp_path: Path):
    async def main() -> None:
        async with learner_in(tmp_path, tmp_path / "no-such-checkpoint"):
            pytest.fail("it started")

    with pytest.raises(LearnerError, match="cannot read the checkpoint"):
        trio.run(main)
