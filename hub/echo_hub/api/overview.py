"""The overview: is the run learning, is it healthy, what limits it? Made once for all who ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import trio
from sqlalchemy import Connection

from echo_hub.api import models
from echo_hub.api.bottleneck import Signs, bottleneck
from echo_hub.api.view import View
from echo_hub.ledger import browse
from echo_hub.ledger.browse import VersionLine
from echo_hub.loop import LearnerNow
from echo_hub.publish.spread import SHOWN, Spread, median_last_s, share_from_peers
from echo_hub.rollouts.curriculum import latest
from echo_hub.rollouts.evaluation import Estimate, Evaluated
from echo_hub.tally import FrontSnapshot
from echo_hub.update_facts import Shares, UpdateFacts

FRESH_S = 0.5
UPDATES = 300
STREAMED = 10
"""Points of the rewards in an overview of the stream: it comes each second, and few are new."""
_RATE_S = 30.0
_REJECTED_S = 180.0
_Z = 1.959963984540054


class OverviewMaker:
    """Makes overviews of a hub; those asked for within `FRESH_S` are the same one."""

    def __init__(self, view: View, alerts: Callable[[], list[models.Alert]]) -> None:
        self._view = view
        self._alerts = alerts
        self._points: list[models.RewardPoint] = []
        self._lock = trio.Lock()
        self._made: models.Overview | None = None
        self._made_at = -math.inf

    async def get(self) -> models.Overview:
        """The overview as of now, or of half a second ago."""
        async with self._lock:
            if self._made is None or trio.current_time() - self._made_at > FRESH_S:
                self._made = await self._make()
                self._made_at = trio.current_time()
            return self._made

    async def reward(self) -> models.Reward:
        """Rewards of the last updates and of all evaluations."""
        newest = self._points[-1].version if self._points else None
        lines, found = await self._view.reader.read(_rewards, newest)
        made = [point for line in reversed(lines) if (point := self._point(line)) is not None]
        self._points = [*self._points, *made][-UPDATES:]
        return models.Reward(
            latest=self._points[-1] if self._points else None,
            updates=self._points,
            heldout=[held_out(one) for one in found],
        )

    def _point(self, line: VersionLine) -> models.RewardPoint | None:
        mean = line.metrics.get("reward_mean")
        if mean is None:
            return None
        config = self._view.config
        groups = sum(line.lags.values()) or config.learner.groups_per_update
        rollouts = groups * config.sampling.group_size
        error = line.metrics.get("reward_error")
        if error is None:  # of an update before this was written down
            error = line.metrics.get("reward_std", 0.0) / math.sqrt(rollouts)
        return models.RewardPoint(
            version=line.version,
            at=line.at,
            mean=mean,
            low=mean - _Z * error,
            high=mean + _Z * error,
            rollouts=rollouts,
        )

    async def _make(self) -> models.Overview:
        view = self._view
        reward = await self.reward()
        disk_free = await trio.to_thread.run_sync(view.disk_free)
        snapshot, now = view.snapshot(), view.learner()
        rates = _rates(view, now)
        spreads = [one for one in view.spreads() if one.kind == "adapter"]
        return models.Overview(
            at=view.clock(),
            run=run_facts(view),
            version=snapshot.version,
            published=snapshot.published,
            paused=None
            if now.pause is None
            else models.Paused(version=now.pause.version, why=now.pause.why, at=now.pause.at),
            complete=now.complete,
            reward=reward,
            learner=_learner(now),
            lag=_lag(view.config.staleness, snapshot, now.recent),
            rates=rates,
            dissemination=_dissemination(spreads, view.spreads()),
            counts=_counts(view, snapshot),
            tasks=latest(facts.tasks for facts in now.recent),
            disk_free=disk_free,
            bottleneck=_limit(view, snapshot, now, rates, spreads, disk_free),
            alerts=self._alerts(),
        )


def _rewards(
    connection: Connection, newest: int | None
) -> tuple[list[VersionLine], list[Evaluated]]:
    lines = browse.version_lines(connection, after=newest, limit=UPDATES)
    return lines, browse.evaluated(connection)


def in_brief(overview: models.Overview) -> models.Overview:
    """The overview for a stream: of its rewards the last points, which is what may be new."""
    reward = overview.reward.model_copy(
        update={
            "updates": overview.reward.updates[-STREAMED:],
            "heldout": overview.reward.heldout[-STREAMED:],
        }
    )
    return overview.model_copy(update={"reward": reward})


def run_facts(view: View) -> models.RunFacts:
    """What never changes while the hub runs."""
    config = view.config
    return models.RunFacts(
        id=config.run.id,
        task=config.shown_tasks,
        base=config.base.path.rstrip("/").rpartition("/")[2],
        mode=config.run.mode,
        staleness=config.staleness,
        kappa=config.kappa,
        groups_per_update=config.learner.groups_per_update,
        group_size=config.sampling.group_size,
        updates=config.run.updates,
        peer_id=view.peer_id,
        addresses=list(view.addresses()),
    )


def held_out(found: Evaluated, task: str | None = None) -> models.HeldOut:
    """An evaluation of all prompts, or of one task's."""
    one: Estimate = found.all if task is None else found.tasks[task]
    return models.HeldOut(
        version=found.version, reward=one.reward, low=one.low, high=one.high, prompts=one.prompts
    )


def spread_facts(spread: Spread) -> models.SpreadFacts:
    """How a version got to the nodes."""
    return models.SpreadFacts(**spread.as_dict())


def _learner(now: LearnerNow) -> models.LearnerState:
    shares = Shares.of(now.recent) if now.recent else None
    return models.LearnerState(
        doing=now.doing,
        for_s=round(now.for_s, 1),
        idle=None if shares is None else shares.waiting,
        training=None if shares is None else shares.training,
        auditing=None if shares is None else shares.auditing,
        train_s=fmean(one.train_s for one in now.recent) if now.recent else None,
        period_s=fmean(one.period_s for one in now.recent) if now.recent else None,
    )


def _lag(staleness: int, snapshot: FrontSnapshot, recent: Sequence[UpdateFacts]) -> models.Lag:
    return models.Lag(
        staleness=staleness,
        histogram=snapshot.lag_histogram,
        last_mean=recent[-1].lag_mean if recent else None,
        last_max=recent[-1].lag_max if recent else None,
    )


def _rates(view: View, now: LearnerNow) -> models.Rates:
    config, recent = view.config, now.recent
    rollouts = config.learner.groups_per_update * config.sampling.group_size
    busy_s = fmean(one.train_s for one in recent) if recent else 0.0
    period_s = fmean(one.period_s for one in recent) if recent else 0.0
    return models.Rates(
        needed=rollouts / busy_s if busy_s else None,
        had=view.samples.over(_RATE_S).rate,
        consumed=rollouts / period_s if period_s else None,
        rejected=view.samples.over(_REJECTED_S).share_rejected,
    )


def _dissemination(adapters: Sequence[Spread], every: Sequence[Spread]) -> models.Dissemination:
    newest = sorted(adapters, key=lambda one: one.version)[-SHOWN:]
    return models.Dissemination(
        last_s_median=median_last_s(adapters),
        peer_share=share_from_peers(every),
        recent=[spread_facts(one) for one in newest],
    )


def _counts(view: View, snapshot: FrontSnapshot) -> models.Counts:
    return models.Counts(
        rollouts_accepted=snapshot.rollouts_accepted,
        rollouts_rejected=snapshot.rollouts_rejected,
        running=snapshot.running,
        checking=snapshot.checking,
        buffered=snapshot.buffered,
        training=snapshot.training,
        audited=snapshot.audited,
        not_audited=snapshot.not_audited,
        nodes_in_session=len(view.in_session()),
        nodes_working=snapshot.working,
        nodes_standby=view.front.roster.on_standby,
        nodes_banned=len(snapshot.banned),
        nodes_known=snapshot.known,
    )


def _limit(
    view: View,
    snapshot: FrontSnapshot,
    now: LearnerNow,
    rates: models.Rates,
    adapters: Sequence[Spread],
    disk_free: int,
) -> models.Bottleneck:
    config = view.config
    shares = Shares.of(now.recent)
    busy_s = fmean(one.train_s for one in now.recent) if now.recent else None
    recent = view.samples.over(_REJECTED_S)
    found = bottleneck(
        Signs(
            version=snapshot.version,
            paused=None if now.pause is None else now.pause.why,
            complete=now.complete,
            idle=shares.waiting if now.recent else None,
            auditing=shares.auditing,
            nodes_in_session=len(view.in_session()),
            nodes_working=snapshot.working,
            needed=rates.needed,
            had=rates.had,
            accepted=recent.accepted,
            rejected=recent.rejected,
            checking=snapshot.checking,
            audits_wait=snapshot.auditing,
            groups_per_update=config.learner.groups_per_update,
            staleness=config.staleness,
            spread_s=median_last_s(adapters[-SHOWN:]),
            hides_s=None if busy_s is None else (config.staleness + 1 - config.kappa) * busy_s,
            disk_free=disk_free,
            disk_needed=config.alerts.disk_mib << 20,
        )
    )
    return models.Bottleneck(limit=found.limit, sentence=found.sentence, fix=found.fix)
