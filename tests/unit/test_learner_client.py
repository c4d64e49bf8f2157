"""The learner in its own process: commands, refusals, death."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from learner_support import load_policy, make_config, scored, seeded_groups

from echo_hub.config import RunConfig
from echo_hub.learner.client import Learner, open_learner
from echo_hub.learner.life import error_of
from echo_hub.learner.messages import Audit, AuditRollout, Failed, Start, TrainGroup
from echo_hub.learner.process import Server
from echo_hub.learner.trainer import Trainer
from echo_hub.models import addmix3_path
from echo_p2p.errors import ConfigError, LearnerError, ProcessError
from echo_p2p.nursery import open_nursery

CONFIG = make_config(learner={"threads": 1})


def some_groups() -> list[TrainGroup]:
    sampled = seeded_groups(load_policy(CONFIG), random.Random(5), 4)
    return [scored(group, 0) for group in sampled]


@pytest.fixture(scope="module")
def groups() -> list[TrainGroup]:
    return some_groups()


@asynccontextmanager
async def learner_in(
    folder: Path, checkpoint: Path | None = None, *, config: RunConfig = CONFIG
) -> AsyncIterator[Learner]:
    async with open_learner(
        config.model_dump_json(),
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


async def many_audits_and_an_update(
    learner: Learner, groups: list[TrainGroup], folder: Path
) -> None:
    """An update does not wait for the audits before it; one that fails fails alone."""
    finished: list[str] = []

    async def audit(number: int) -> None:
        adapter = folder / ("nowhere" if number == 30 else "v0/adapter")
        try:
            await learner.audit(audit_of(groups[0], adapter), deadline_s=60)
        except LearnerError as error:
            finished.append(error.message)
        else:
            finished.append("audit")

    before = learner.spent
    async with open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(audit, number)
        await trio.testing.wait_all_tasks_blocked()
        await learner.train(1, groups, out=folder / "v2", deadline_s=60)
        finished.append("update")
    assert finished[-1] == "audit"
    assert (finished.count("audit"), finished.count("update"), len(finished)) == (59, 1, 61)
    spent = learner.spent - before
    assert spent.training_s > 0 and spent.auditing_s > 0


def test_a_learner_from_its_first_update_to_its_death(groups: list[TrainGroup], tmp_path: Path):
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
            await many_audits_and_an_update(learner, groups, tmp_path)
            os.kill(learner.pid, signal.SIGKILL)
            for _ in range(2):
                with pytest.raises(ProcessError):
                    await learner.train(2, groups, out=tmp_path / "v3", deadline_s=60)

    trio.run(main)
    assert {path.name for path in tmp_path.iterdir()} == {"v0", "v1", "v2"}


def test_a_learner_resumed_and_then_given_up_on(groups: list[TrainGroup], tmp_path: Path):
    checkpoint = tmp_path / "v1"
    Trainer(load_policy(CONFIG), CONFIG).train(groups, checkpoint)

    async def main() -> None:
        async with learner_in(tmp_path, checkpoint) as learner:
            assert learner.version == 1
            trained = await learner.train(1, groups, out=tmp_path / "v2", deadline_s=60)
            assert trained.metrics["lag_max"] == 1.0
            audit = audit_of(groups[0], checkpoint / "adapter")
            with trio.CancelScope() as scope:
                scope.cancel()  # before it was sent: no harm done
                await learner.audit(audit, deadline_s=60)
            await learner.audit(audit, deadline_s=60)
            with pytest.raises(ProcessError, match="did not answer"):
                await learner.audit(audit, deadline_s=0)
            with pytest.raises(ProcessError, match="did not answer"):  # and is not asked again
                await learner.audit(audit, deadline_s=60)

    trio.run(main)


PARENT = """
import sys, trio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_learner_client import learner_in, some_groups

async def main(folder):
    groups = some_groups() * 60
    async with learner_in(folder) as learner:
        print(learner.pid, flush=True)
        await learner.train(0, groups, out=folder / "v1", deadline_s=60)
        print("trained", flush=True)

trio.run(main, Path(sys.argv[2]))
"""


def test_the_learner_of_a_killed_hub_ends_in_mid_update(tmp_path: Path):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PARENT, here, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        learner = psutil.Process(int(parent.stdout.readline()))
        idle = learner.cpu_times().user
        while learner.cpu_times().user < idle + 1.0:  # a second of work: well into the update
            time.sleep(0.05)
        parent.kill()
        assert "trained" not in parent.stdout.read()
    learner.wait(timeout=60)
    assert not (tmp_path / "v1").exists()


@pytest.mark.parametrize(
    ("changes", "checkpoint", "error", "complaint", "fix"),
    [
        ({}, "v3", LearnerError, "cannot read the checkpoint", "a run does not go back"),
        ({}, None, LearnerError, "ledger knows no version, but .* holds v000007", "from a backup"),
        ({"device": "meta"}, None, ConfigError, r"learner\.device = 'meta'", '"cpu"'),
        ({"target_modules": ["query"]}, None, ConfigError, r"learner\.target_modules: ", "q_proj"),
    ],
)
def test_a_start_that_fails_says_why_and_what_to_do(
    tmp_path: Path, changes, checkpoint, error, complaint, fix
):
    if error is LearnerError:
        (tmp_path / "v000007").mkdir()
    start = Start(
        config=make_config(learner={"threads": 1, **changes}).model_dump_json(),
        base=str(addmix3_path()),
        checkpoint=checkpoint and str(tmp_path / checkpoint),
        out=str(tmp_path / "v0"),
    )
    answer = Server().answer(start)
    assert isinstance(answer, Failed)
    caught = error_of(answer)
    assert type(caught) is error
    assert re.search(complaint, caught.message)
    assert fix in caught.fix


def test_what_a_start_failed_of_comes_through_the_pipe(tmp_path: Path):
    async def main() -> None:
        config = make_config(learner={"threads": 1, "target_modules": ["query"]})
        async with learner_in(tmp_path, config=config):
            pytest.fail("it started")

    with pytest.raises(ConfigError, match=r"learner\.target_modules: ") as caught:
        trio.run(main)
    assert "q_proj" in caught.value.fix
    assert "Traceback" not in str(caught.value)
