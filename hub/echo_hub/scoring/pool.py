"""The pool of scorer processes, seen from the hub.

Promises: a request that hangs or crashes its scorer, or takes more memory than it may, costs at
most two time limits and two scorers, which are killed and replaced with all they started, and comes
back as a recorded failure; no failure is ever a reward; a scorer that cannot even start stops the
hub, loudly. Scorers get no descriptors of the hub, and of its environment what `scoring` names.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from echo_hub.config import RunConfig, ScoringSection
from echo_hub.rollouts.checks import Code, Rejection
from echo_hub.run_facts import LONGEST_PROMPT
from echo_hub.scoring.confine import inherited
from echo_hub.scoring.process import (
    ANSWERS,
    Altered,
    Answer,
    Command,
    Failed,
    MadePrompt,
    MakePrompts,
    Prompts,
    Ready,
    Replied,
    Reply,
    Score,
    Scored,
    Setup,
    TaskSetup,
)
from echo_hub.tasks.base import Split
from echo_hub.tasks.replay import Answered, Told
from echo_p2p.errors import ConfigError, ProcessError, WireError
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

if TYPE_CHECKING:
    from echo_hub.scoring.ray_pool import RayPool

_START_DEADLINE_S = 120.0
_TRIES = 2
_TRIED = 4  # prompts, at the start
_REMEMBERED_PROMPTS = 2048  # more than are ever out, in most runs


log = logging.getLogger(__name__)


@dataclass
class _Job:
    command: Command
    tries: int = 0
    losses: int = 0
    answer: Answer | None = None
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def size(self) -> int:
        """How many time limits it may take: one a prompt, one a group, one a reply."""
        match self.command:
            case MakePrompts():
                return len(self.command.indices)
            case Reply():
                return len(self.command.dialogues)
        return 1


class Scorers:
    """Makes prompts and computes rewards in other processes. Made by `open_scorers`."""

    def __init__(self, jobs: trio.MemorySendChannel[_Job], config: RunConfig) -> None:
        self.environments: tuple[str, ...] = ()
        """Ids of the environments that prompts may name."""
        self._jobs = jobs
        self._tasks = len(config.all_tasks)
        self._mixture = config.mixture
        self._made: OrderedDict[tuple[Split, int], MadePrompt] = OrderedDict()
        self._warned = False

    async def prompts(self, split: Split, indices: Sequence[int]) -> list[list[int] | str]:
        """Token ids of these prompts; a sentence in the place of one that cannot be made."""
        made = await self.orders(split, indices)
        return [one if isinstance(one, str) else one.tokens for one in made]

    async def orders(self, split: Split, indices: Sequence[int]) -> list[MadePrompt | str]:
        """These prompts and how they go on; a sentence in place of one that cannot be made."""
        new = [index for index in indices if (split, index) not in self._made]
        made: dict[int, MadePrompt | str] = {
            index: self._made[split, index] for index in indices if index not in new
        }
        if new:
            answer = await self._do(MakePrompts(split=split, indices=new))
            if isinstance(answer, Prompts):
                prompts = answer.prompts
                self._warn_once(answer.unreadable)
            else:
                prompts = list[MadePrompt | str]([_sentence(answer)] * len(new))
            made.update(zip(new, prompts, strict=True))
        for index, prompt in made.items():
            self._keep(split, index, prompt)
        return [made[index] for index in indices]

    async def try_tasks(self) -> None:
        """Make a few prompts, so that what is wrong with them is known before a node asks."""
        for task in range(self._tasks):
            await self.prompts("train", self._mixture.first_of(task, _TRIED))

    def _warn_once(self, unreadable: str) -> None:
        if unreadable and not self._warned:
            self._warned = True
            log.warning(
                "the task's prompts hold what the base model has no token for, as %s; it does "
                "not see what stands there. Choose another task.name or base.path.",
                unreadable,
            )

    def _keep(self, split: Split, index: int, prompt: MadePrompt | str) -> None:
        if not isinstance(prompt, str):
            self._made[split, index] = prompt
            self._made.move_to_end((split, index))
            while len(self._made) > _REMEMBERED_PROMPTS:
                self._made.popitem(last=False)

    async def score(
        self, split: Split, index: int, prompt: list[int], answers: list[Answered]
    ) -> list[float] | Rejection:
        """The reward of each answer to a prompt, or why there is none."""
        command = Score(split=split, index=index, prompt=prompt, answers=answers)
        answer = await self._do(command)
        if isinstance(answer, Scored) and len(answer.rewards) == len(answers):
            return answer.rewards
        if isinstance(answer, Altered):
            return Rejection(Code.BAD_OBSERVATION, answer.message)
        return Rejection(Code.SCORE_FAILED, _sentence(answer))

    async def reply(
        self, split: Split, index: int, dialogues: list[list[list[int]]]
    ) -> list[Told] | str:
        """What the task says in these dialogues, given as their turns; or why it cannot."""
        answer = await self._do(Reply(split=split, index=index, dialogues=dialogues))
        if isinstance(answer, Replied) and len(answer.told) == len(dialogues):
            return answer.told
        return _sentence(answer)

    async def _do(self, command: Command) -> Answer | None:
        job = _Job(command)
        await self._jobs.send(job)
        await job.done.wait()
        return job.answer


def _sentence(answer: Answer | None) -> str:
    return answer.message if isinstance(answer, Failed) else "the scorer broke its protocol"


@asynccontextmanager
async def open_scorers(config: RunConfig, base: Path) -> AsyncIterator[Scorers]:
    """Start the scorer processes of a run; ConfigError if its task cannot be made."""
    setup = Setup(
        tasks=[
            TaskSetup(
                name=task.name,
                options=task.options,
                template=task.template,
                buckets=task.buckets,
                kept=task.kept,
            )
            for task in config.all_tasks
        ],
        seed=config.run.seed,
        base=str(base),
        longest_prompt=LONGEST_PROMPT,
        max_new_tokens=config.sampling.max_new_tokens,
        memory=config.scoring.memory,
        network=config.scoring.network,
        turn_tokens=config.sampling.turn_tokens,
    )
    send, receive = trio.open_memory_channel[_Job](0)
    async with open_nursery() as nursery:
        for worker in _workers(setup, receive, config.scoring):
            nursery.start_soon(worker.run)
            await worker.ready.wait()
        for why in worker.lacking:
            log.warning("%s", why)
        scorers = Scorers(send, config)
        scorers.environments = worker.environments
        nursery.start_soon(scorers.try_tasks)
        try:
            yield scorers
        finally:
            nursery.cancel_scope.cancel()


def _workers(
    setup: Setup, jobs: trio.MemoryReceiveChannel[_Job], rules: ScoringSection
) -> Sequence[_Worker | RayPool]:
    """Who takes the jobs: a worker for each process here, or one for all places of a cluster."""
    if rules.pool == "local":
        return [_Worker(setup, jobs.clone(), rules) for _ in range(rules.processes)]
    from echo_hub.scoring.ray_pool import RayPool

    return [RayPool(setup, jobs, rules, tries=_TRIES)]


class _Worker:
    """One place in the pool: a scorer process, and the next one when it must be replaced."""

    def __init__(
        self, setup: Setup, jobs: trio.MemoryReceiveChannel[_Job], rules: ScoringSection
    ) -> None:
        self._setup = setup
        self._jobs = jobs
        self._rules = rules
        self.ready = trio.Event()
        self.lacking: list[str] = []
        self.environments: tuple[str, ...] = ()

    async def run(self) -> None:
        again: _Job | None = None
        while True:
            async with child_process(
                "echo_hub.scoring.process",
                name="scorer",
                env={"PYTHONHASHSEED": "0"},
                inherit=inherited(self._rules.environment),
            ) as child:
                ready = await child.call(self._setup, ANSWERS, deadline_s=_START_DEADLINE_S)
                if isinstance(ready, Failed):
                    raise ConfigError(ready.message)
                if isinstance(ready, Ready):
                    self.lacking, self.environments = ready.lacking, tuple(ready.environments)
                self.ready.set()
                again = await self._serve(child, again)

    async def _serve(self, child: Child, job: _Job | None) -> _Job | None:
        """Do jobs until the scorer must be replaced; returns the one to be tried once more."""
        while True:
            job = job or await self._jobs.receive()
            job.tries += 1
            try:
                job.answer = await self._ask(child, job)
            except (ProcessError, WireError) as error:
                child.kill()
                if job.tries < _TRIES:
                    return job
                job.answer = Failed(message=str(error))
                job.done.set()
                return None
            except BaseException:  # cancelled: what it is doing is nobody's business any more
                child.kill()
                raise
            job.done.set()
            job = None

    async def _ask(self, child: Child, job: _Job) -> Answer:
        """ProcessError if this scorer can no longer answer anything."""
        deadline_s = self._rules.timeout_s * job.size
        answer: Answer = await child.call(job.command, ANSWERS, deadline_s=deadline_s)
        if isinstance(answer, Failed) and answer.spent:
            raise ProcessError(answer.message)
        return answer
