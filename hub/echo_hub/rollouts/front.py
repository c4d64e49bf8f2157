"""The hub's front: leases out, submissions in, checked groups to the learner.

Requests of nodes are answered by `granting` and `intake`; here a group goes on from its receipt
through reward and audit into the buffer, and from there to the learner, or to the evaluation it
belongs to; `keeper` judges its node on the way. Promises:

- groups wait in memory only as far as leases allow (`LeaseBook`), so a slow scorer, auditor or
  learner slows leases down and nothing else;
- what was acknowledged and not consumed before a restart is checked and trained on after it;
- a group that is dropped has its reason code in the ledger and in `snapshot`.

All state changes between two awaits, so there is no lock.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec
import trio

from echo_hub.audit.sequential import FLOAT32, Noise
from echo_hub.config import RunConfig
from echo_hub.control.actions import NodeAction
from echo_hub.learner.penalties import all_alike
from echo_hub.ledger.ledger import Ledger, Recovered
from echo_hub.rollouts.assess import Assessed, Assessor, Audit, Group
from echo_hub.rollouts.buffer import Buffer, ScoredGroup
from echo_hub.rollouts.checks import Code, Rejection, Standing
from echo_hub.rollouts.curriculum import PREFIX, Curriculum, TaskMeters
from echo_hub.rollouts.dialogues import Dialogues
from echo_hub.rollouts.evaluation import Evaluated, Evaluation
from echo_hub.rollouts.granting import Granter
from echo_hub.rollouts.intake import Intake
from echo_hub.rollouts.keeper import Keeper
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import InOrder
from echo_hub.rollouts.second_look import SecondLook
from echo_hub.rollouts.standby import paces_of, roster_of
from echo_hub.rollouts.unscored import Unscored
from echo_hub.scoring.pool import Scorers
from echo_hub.tally import FrontSnapshot, NodeFacts, Tally
from echo_hub.tasks.base import Split
from echo_hub.tokens import Tokenizer
from echo_p2p.identity import Identity
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    Done,
    LeaseGrant,
    LeaseRequest,
    LeaseReturn,
    Sampling,
    StandbyReply,
    Submit,
    SubmitReply,
    TurnReply,
    TurnRequest,
)

EVALUATION_PATIENCE_S = 120.0
AUDITS_AT_ONCE = 16
_UNASKED_PATIENCE_S = 30.0  # if no lease of it is out
_TICK_S = 1.0
_MOST_FAILED_REPLIES = 3  # to one prompt
_TIMES_KEPT = 64


log = logging.getLogger(__name__)

__all__ = ["Front", "FrontSnapshot"]


class Front:
    """One run's front. Groups reach the learner while `run` is running."""

    def __init__(
        self,
        *,
        config: RunConfig,
        identity: Identity,
        ledger: Ledger,
        scorers: Scorers,
        tokenizer: Tokenizer,
        recovered: Recovered,
        audit: Audit,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        noise: Noise = FLOAT32,
    ) -> None:
        self._config = config
        paces = paces_of(config)
        self.roster = roster_of(config, paces)
        """Who may have work."""
        self._ledger = ledger
        self._clock = clock
        self._vocab_size = tokenizer.vocab_size
        self._sampling = Sampling(
            temperature=config.sampling.temperature,
            top_k=config.sampling.top_k,
            top_p=config.sampling.top_p,
            max_new_tokens=config.sampling.max_new_tokens,
            stop=tokenizer.eos,
        )
        learner = config.learner
        most_blank = learner.most_dropped * learner.groups_per_update
        self._buffer = Buffer(most_blank=most_blank if learner.drop_zero_advantage else 0)
        self._tally = Tally(recovered.verdicts)
        self._unscored = Unscored()
        self.on_scored: Callable[[Group, list[float]], None] | None = None
        """Hears of each group that passed every check, with its rewards."""
        self._lags = Counter(recovered.lags)
        self._withdrawn = recovered.guard.withdrawn
        self._mixture = config.mixture
        self._curriculum = Curriculum(
            self._mixture,
            config.all_tasks,
            config.curriculum,
            seed=config.run.seed,
            history=recovered.history,
        )
        self._meters = TaskMeters(config.all_tasks)
        self._evaluations: dict[int, Evaluation] = {}
        self._checking = 0
        self._training = 0
        self._changed = trio.Event()
        self._received_at: dict[int, float] = {}
        self._to_check, self._received = trio.open_memory_channel[Group](float("inf"))
        self._in_order = InOrder[Assessed]()
        self._keeper = Keeper(
            run_id=config.run.id,
            rules=config.audit,
            identity=identity,
            ledger=ledger,
            recovered=recovered,
            clock=clock,
            evict=self._evict,
            noise=noise,
        )
        self._assessor = Assessor(
            scorers,
            audit,
            config.audit,
            self._keeper.probability,
            rng or secrets.SystemRandom(),
            heldout=config.evaluation.audit,
        )
        self._granter = Granter(
            config=config,
            identity=identity,
            ledger=ledger,
            scorers=scorers,
            sampling=self._sampling,
            recovered=recovered,
            draw=self._curriculum.draw,
            elsewhere=self._elsewhere,
            proven=self._keeper.proven,
            roster=self.roster,
            paces=paces,
            in_check=self._in_order.waiting,
            on_skipped=self._skipped,
            on_freed=self._wake,
        )
        self._dialogues = Dialogues(
            scorers=scorers,
            ledger=ledger,
            sampling=self._sampling,
            vocab_size=self._vocab_size,
            lease_of=self._granter.book.get,
            clock=clock,
            on_failed=self._reply_failed,
        )
        self._dialogues.recover(recovered.dialogues)
        self.check_times: deque[float] = deque(maxlen=_TIMES_KEPT)
        """Seconds from receipt to the buffer, of the last groups that came to it."""
        self._failed_replies: Counter[tuple[Split, int]] = Counter()
        self._intake = Intake(
            run_id=config.run.id,
            group_size=config.sampling.group_size,
            identity=identity,
            ledger=ledger,
            granter=self._granter,
            tally=self._tally,
            clock=clock,
            standing=self._standing,
            keeper=self._keeper,
            dialogues=self._dialogues,
            on_accepted=self._check_later,
        )
        self._second_look = SecondLook(
            assessor=self._assessor,
            keeper=self._keeper,
            ledger=ledger,
            sampling=self._sampling,
            drop=self._drop,
        )
        self._book = self._granter.book
        for stored in recovered.groups:
            group = Group.recovered(stored, self._sampling)
            self._check_later(replace(group, told=self._dialogues.claim(group.lease.lease_id)))

    async def run(self) -> None:
        """Check groups and expire leases, until cancelled."""
        async with open_nursery() as nursery:
            # more than scorers, so that audits overlap with scoring and share passes
            for _ in range(self._config.scoring.processes + AUDITS_AT_ONCE):
                nursery.start_soon(self._check_groups)
            nursery.start_soon(self._dialogues.run)
            while True:
                await trio.sleep(_TICK_S)
                await self.expire()
                await self._dialogues.sweep()
                await self._keeper.tick()
                self._granter.check_prompts()
                self._wake()

    # --- nodes ask ----------------------------------------------------------------------------

    async def request_leases(self, node: bytes, request: LeaseRequest) -> LeaseGrant:
        """Leases for a node, now or within `wait_s`. Its newer request supersedes an older one."""
        self.check_admitted(node)
        now = self._clock()
        self._tally.seen(node, request.version, now)
        grant = await self._granter.request(node, request, now)
        return msgspec.structs.replace(grant, verdicts=self._keeper.news_for(node))

    def check_admitted(self, node: bytes) -> None:
        """PeerRefusedError if a node is banned."""
        self._keeper.check(node)

    def is_banned(self, node: bytes) -> bool:
        """Is a node shut out?"""
        return self._keeper.reputation.banned(node) is not None

    def has_standing(self, node: bytes) -> bool:
        """Has a node handed in a valid group since the last invalid one?"""
        return self._keeper.proven(node)

    def why_no_work(self, node: bytes) -> StandbyReply:
        """Is a node on standby, and why?"""
        found = self.roster.standby(node, self._clock())
        if found is None:
            return StandbyReply(standby=False, sentence="", until=None)
        return StandbyReply(standby=True, sentence=found.sentence, until=found.until)

    async def return_leases(self, node: bytes, request: LeaseReturn) -> Done:
        """A node gives leases back; those that are not its own are left alone."""
        returned = await self._granter.release(request.lease_ids, node)
        self._keeper.gave_back(node, returned)
        return Done()

    async def farewell(self, node: bytes) -> Done:
        """A node leaves: all that it still holds goes to others."""
        self._keeper.gave_back(node, await self._granter.leave(node))
        return Done()

    async def take_turns(self, node: bytes, request: TurnRequest) -> TurnReply:
        """What the hub's own task says after a node's turns."""
        self.check_admitted(node)
        return await self._dialogues.take(node, request)

    async def _reply_failed(self, lease: OpenLease, why: str) -> None:
        """The task could not reply: the lease is over, and after some tries so is its prompt."""
        if self._book.get(lease.lease_id) is None:
            return
        prompt = (lease.split, lease.index)
        self._failed_replies[prompt] += 1
        self._unscored.failed(why)
        await self._ledger.record_event(
            "reply_failed", split=lease.split, index=lease.index, why=why
        )
        if self._book.get(lease.lease_id) is not None:
            closed = self._book.answer(lease.lease_id)
            await self._ledger.release_leases([closed])
            if self._failed_replies[prompt] < _MOST_FAILED_REPLIES:
                self._book.give_back(closed)
            else:
                del self._failed_replies[prompt]
                self._skipped(closed)
            self._wake()

    async def submit(self, node: bytes, request: Submit) -> SubmitReply:
        """Check and keep a submission, and sign its receipt."""
        return await self._intake.submit(node, request)

    async def expire(self) -> None:
        """Take back leases whose time is up. `run` does it every second."""
        self._keeper.expired(await self._granter.expire(self._clock()))

    def _standing(self) -> Standing:
        return Standing(
            next_update=self._book.version + (1 if self._training else 0),
            published=self._granter.published,
            staleness=self._config.staleness,
            vocab_size=self._vocab_size,
            sampling=self._sampling,
            turn_tokens=self._config.sampling.turn_tokens,
            withdrawn=self._withdrawn,
        )

    def _elsewhere(self) -> int:
        return self._intake.writing + self._checking + len(self._buffer) + self._training

    def _wake(self) -> None:
        """Something changed: whoever waits for work, a batch or an evaluation looks again."""
        self._changed.set()
        self._changed = trio.Event()
        self._granter.share_out(self._clock())

    # --- groups are checked -------------------------------------------------------------------

    def _check_later(self, group: Group) -> None:
        self._received_at[group.group_id] = trio.current_time()
        self._checking += group.lease.split == "train"
        self._in_order.enter(group.lease.node, group.group_id)
        self._to_check.send_nowait(group)

    async def _check_groups(self) -> None:
        async for group in self._received.clone():
            node = group.lease.node
            self._in_order.decide(group.group_id, await self._assessor.assess(group))
            while (ready := self._in_order.take(node)) is not None:
                await self._settle(ready)
                received = self._received_at.pop(ready.group.group_id)
                self.check_times.append(trio.current_time() - received)
                await self._dialogues.forget(ready.group.lease.lease_id)
                self._in_order.done(node)
                self._checking -= ready.group.lease.split == "train"
                self._wake()

    async def _settle(self, assessed: Assessed) -> None:
        verdict = await self._keeper.judge(assessed)
        if isinstance(verdict, Rejection):
            await self._drop(assessed.group, verdict)
        else:
            await self._keep(assessed, verdict)
        if assessed.evidence is not None:
            await self._ledger.decisions.add_audit(assessed.group.group_id, assessed.evidence)

    async def _keep(self, assessed: Assessed, rewards: list[float]) -> None:
        group, lease = assessed.group, assessed.group.lease
        if group.rewards is None:
            self._unscored.scored()
            audited = assessed.evidence is not None
            log.debug("scored", extra={"trace": lease.lease_id.hex(), "audited": audited})
            await self._ledger.set_scored(group.group_id, rewards, audited=audited)
            if lease.node in self._keeper.reputation.bans:  # in the meantime
                await self._drop(group, Rejection(Code.BANNED))
                return
            self._measure(group, rewards)
            if self.on_scored is not None:
                self.on_scored(group, rewards)
        if lease.split == "train":
            if group.version in self._withdrawn:  # in the meantime, or before a restart
                await self._drop(group, Rejection(Code.WITHDRAWN))
                return
            arm = self._mixture.arm_of(lease.index)
            self._wait(replace(group.scored(rewards), arm=arm))
            return
        evaluation = self._evaluations.get(group.version)
        if evaluation is not None:
            evaluation.answer(lease.index, group.group_id, rewards)
        else:  # given up in the meantime
            await self._drop(group, Rejection(Code.INTERRUPTED))

    def _wait(self, group: ScoredGroup) -> None:
        """A group waits for the learner."""
        self._buffer.add(group, blank=self._is_blank(group))

    def _is_blank(self, group: ScoredGroup) -> bool:
        """Would no answer of a group have an advantage over the others?"""
        return all_alike(
            group.rollouts,
            limit=self._config.sampling.max_new_tokens,
            tolerance=self._config.learner.overlong_tokens,
        )

    def _measure(self, group: Group, rewards: list[float]) -> None:
        """Count a train group for its task, and for what is drawn next."""
        if group.lease.split == "train":
            number = group.lease.index
            lengths = [len(rollout.tokens) for rollout in group.rollouts]
            self._meters.observe(self._mixture.task_of("train", number), rewards, lengths)
            self._curriculum.observe(number, rewards)

    def task_metrics(self) -> dict[str, float]:
        """What the groups of each task were like since this was last asked; and `outside`, the
        share of its prompts that a curriculum leaves out or draws less."""
        metrics = self._meters.take()
        if self._config.curriculum.window:
            for number, task in enumerate(self._config.all_tasks):
                metrics[f"{PREFIX}{task.called}.outside"] = self._curriculum.outside(number)
        return metrics

    async def _drop(self, group: Group, rejection: Rejection) -> None:
        lease = group.lease
        trace = {"trace": lease.lease_id.hex(), "group": group.group_id}
        log.info("left out: %s", rejection.sentence, extra=trace)
        again = self._is_asked_again(group, rejection.code)
        if rejection.code is Code.SCORE_FAILED:
            self._unscored.failed(rejection.detail)
        self._tally.drop(lease.node, rejection.code, len(group.rollouts))
        self._keeper.tell(lease.node, lease.lease_id, rejection)
        await self._ledger.drop_groups(
            [group.group_id], rejection.code, release=[lease] if again else []
        )
        await self._ledger.record_event(
            "group_dropped", group=group.group_id, code=rejection.code, why=rejection.sentence
        )
        if again:
            self._book.give_back(lease)

    def _evict(self, node: bytes, code: Code) -> tuple[list[int], list[OpenLease]]:
        """Take out what a node has here that is shut out, or in quarantine: that one keeps its
        leases. What is being checked is dropped at its end."""
        evicted = self._buffer.evict(node)
        for group in evicted:
            self._tally.drop(node, code, len(group.rollouts))
        if code is Code.QUARANTINED:
            return [group.group_id for group in evicted], []
        return [group.group_id for group in evicted], self._granter.shut_out(node)

    def _is_asked_again(self, group: Group, code: Code) -> bool:
        """Does the prompt of a dropped group go out again?

        In training, what could not be scored would fail again; what was answered falsely goes to
        another lease, so that false answers are no way to choose what is trained on.
        """
        if group.lease.split == "train":
            return code is not Code.SCORE_FAILED
        evaluation = self._evaluations.get(group.version)
        return evaluation is not None and evaluation.fail(group.lease.index)

    def _skipped(self, lease: OpenLease) -> None:
        evaluation = self._evaluations.get(lease.min_version)
        if lease.split == "heldout" and evaluation is not None:
            evaluation.leave_out(lease.index)
            self._wake()

    # --- the learner asks ---------------------------------------------------------------------

    def advance(self, version: int, *, published: bool) -> None:
        """The learner is at `version` now, and `published` says if nodes can have it."""
        if version != self._book.version:
            self._training = 0
        self._book.version = version
        if published:
            self._granter.publish(version)
        self._wake()

    async def take_batch(
        self, gives_way: Callable[[], bool] = lambda: False
    ) -> list[ScoredGroup] | None:
        """The groups of the next update, as soon as there are enough; stale ones are dropped. None
        if there are not, and it `gives_way` to something else (see `wake`)."""
        self._training = 0
        size, staleness = self._config.learner.groups_per_update, self._config.staleness
        while True:
            changed, version = self._changed, self._book.version
            batch, stale = self._buffer.take(size, version, staleness)
            if batch is not None:
                self._training = size
                self._lags.update(version - group.version for group in batch)
            if stale:
                await self.drop_groups(stale, Code.STALE)
            if batch is not None:
                return batch
            if gives_way():
                return None
            if not stale:
                await changed.wait()

    def wake(self) -> None:
        """Let `take_batch` ask whether it gives way."""
        self._wake()

    def blank_rewards(self) -> tuple[list[list[float]], list[int]]:
        """Rewards of the groups that the update at hand would leave out, and each one's arm."""
        blank = self._buffer.blank()
        rewards = [[rollout.reward for rollout in group.rollouts] for group in blank]
        return rewards, [group.arm for group in blank]

    async def take_blank(self) -> list[ScoredGroup]:
        """The groups that the update at hand uses up without training on them: they count as
        consumed by it, and so for their nodes. Stale ones are dropped."""
        version = self._book.version
        blank, stale = self._buffer.take_blank(version, self._config.staleness)
        self._lags.update(version - group.version for group in blank)
        if stale:
            await self.drop_groups(stale, Code.STALE)
        return blank

    async def drop_groups(self, dropped: Sequence[ScoredGroup], code: Code) -> None:
        """Groups that had passed every check will not be trained on after all."""
        for group in dropped:
            self._tally.drop(group.node, code, len(group.rollouts))
            self._keeper.tell(group.node, group.lease_id, Rejection(code))
        await self._ledger.drop_groups([group.group_id for group in dropped], code)
        self._wake()

    async def refuse_batch(self, groups: Sequence[ScoredGroup], code: Code) -> None:
        """The learner would not train on the batch it took."""
        self._was_not_consumed(groups)
        await self.drop_groups(groups, code)

    async def look_again(self, groups: Sequence[ScoredGroup]) -> list[int]:
        """Audit what of a refused batch was never audited: the ids of its false groups. If there
        are any, they are dropped, and the others wait for the next update."""
        false, others = await self._second_look.look(groups)
        if false:
            self._was_not_consumed(groups)
            for group in others:
                self._wait(group)
            self._wake()
        return false

    def _was_not_consumed(self, groups: Sequence[ScoredGroup]) -> None:
        self._training = 0
        self._lags -= Counter(self._book.version - group.version for group in groups)

    async def withdraw(self, versions: Iterable[int]) -> None:
        """Nothing that these versions sampled is trained on any more."""
        self._withdrawn |= frozenset(versions)
        await self.drop_groups(self._buffer.withdraw(self._withdrawn), Code.WITHDRAWN)

    @property
    def published(self) -> frozenset[int]:
        """Versions that nodes were offered and that were not withdrawn."""
        return frozenset(self._granter.published) - self._withdrawn

    async def evaluate(self, version: int, prompts: int) -> Evaluated | None:
        """Rewards of the first `prompts` held-out prompts under a published version.

        Prompts that cannot be scored are left out. If nodes have a newer version and nothing comes
        any more, so are those that wait; None if they are more than half.
        """
        names = [task.called for task in self._config.all_tasks]
        evaluation = self._evaluations[version] = Evaluation(version, prompts, names)
        self._book.open_evaluation(version, range(prompts))
        self._wake()
        try:
            await self._wait_for(evaluation)
        finally:
            del self._evaluations[version]
            withdrawn = self._book.close_evaluation(version)
        await self._ledger.release_leases(withdrawn)
        await self._ledger.consume_evaluated(evaluation.group_ids)
        return evaluation.outcome()

    async def _wait_for(self, evaluation: Evaluation) -> None:
        answered, since = 0, trio.current_time()
        while not evaluation.finished:
            if evaluation.answered > answered:
                answered, since = evaluation.answered, trio.current_time()
            outdated = (self._granter.newest or 0) > evaluation.version
            out = self._book.evaluating(evaluation.version)
            patience_s = EVALUATION_PATIENCE_S if out else _UNASKED_PATIENCE_S
            if outdated and trio.current_time() - since > patience_s:
                return
            await self._changed.wait()  # `run` wakes everybody each second

    def close_training(self) -> None:
        """Lease nothing for training any more; evaluations go on."""
        self._book.close_training()

    def complete(self) -> None:
        """The run is over: every node that asks is told so."""
        self._granter.complete()

    # --- people ask ---------------------------------------------------------------------------

    async def do(self, action: NodeAction) -> str:
        """What an operator wants of a node; a sentence that says what was done."""
        return await self._keeper.do(action)

    def quarantined(self, node: bytes) -> str | None:
        """Why a node is in quarantine; None if it is not."""
        return self._keeper.quarantined.get(node)

    def snapshot(self, *, nodes: bool = True) -> FrontSnapshot:
        """Where everything stands now; the facts of thousands of nodes may be left out."""
        known = self._tally.nodes(self._clock()) if nodes else ()
        return FrontSnapshot(
            version=self._book.version,
            published=self._granter.newest,
            rollouts_accepted=self._tally.accepted,
            rollouts_rejected=self._tally.rejected,
            lag_histogram=dict(sorted(self._lags.items())),
            running=self._book.running,
            checking=self._intake.writing + self._checking,
            buffered=len(self._buffer),
            training=self._training,
            waiting_nodes=self._granter.waiting,
            audited=self._assessor.audited,
            not_audited=self._assessor.not_audited,
            known=len(self._tally),
            working=self._tally.working(self._clock()),
            auditing=self._assessor.auditing,
            evaluating={v: one.answered for v, one in self._evaluations.items()},
            nodes=tuple(map(self._with_standing, known)),
            banned=self._keeper.reputation.bans,
        )

    def node_facts(self, key: bytes) -> NodeFacts | None:
        """Facts of one node; None if it has done nothing here."""
        found = self._tally.one(key, self._clock())
        return None if found is None else self._with_standing(found)

    def node_live(self, key: bytes) -> tuple[int | None, float] | None:
        """Version and rate of one node, of which `node_facts` tells more and takes longer."""
        return self._tally.live(key, self._clock())

    def rates(self) -> list[float]:
        """Rollouts a second of each node that gives any."""
        return self._tally.rates(self._clock())

    def take_changed(self, most: int) -> list[bytes]:
        """Keys of nodes that did something since they were last taken here."""
        return self._tally.take_changed(most)

    def nodes_seen(self) -> list[bytes]:
        """Keys of the nodes that `snapshot` knows."""
        return self._tally.keys()

    def _with_standing(self, node: NodeFacts) -> NodeFacts:
        reputation, now = self._keeper.reputation, self._clock()
        return replace(
            node,
            valid=reputation.valid(node.key, now),
            audits=reputation.audit_probability(node.key, now),
            banned=reputation.banned(node.key),
        )
