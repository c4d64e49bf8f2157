"""What Prometheus reads: the overview's numbers by its naming conventions.

Base units, `_total` for what only grows; a run's counters go on after a restart of the hub, since
the ledger keeps them. docs/grafana.json and docs/alerts.yml use these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from echo_hub.api.models import Overview
from echo_p2p import __version__


def _gauge(name: str, what: str, value: float | None) -> Iterable[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"echo_hub_{name}", what, value=float(value))


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    what: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(f"echo_hub_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


class HubCollector(Collector):
    """One overview, with the learner's newest metrics, as Prometheus' families."""

    def __init__(self, overview: Overview, learner: Mapping[str, float], watchers: int) -> None:
        self._overview = overview
        self._learner = learner
        self._watchers = watchers

    def collect(self) -> Iterable[Metric]:
        """All families, in a fixed order."""
        yield from self._of_the_run()
        yield from self._of_rollouts()
        yield from self._of_the_learner()
        yield from self._of_the_swarm()

    def _of_the_run(self) -> Iterable[Metric]:
        one = self._overview
        info = GaugeMetricFamily(
            "echo_hub_info", "Always 1; what is served.", labels=["run", "task", "version"]
        )
        info.add_metric([one.run.id, one.run.task, __version__], 1.0)
        yield info
        yield from _gauge("policy_version", "The learner's version.", one.version)
        yield from _gauge("published_version", "The newest published version.", one.published)
        yield from _gauge("paused", "1 if the run is paused.", one.paused is not None)
        yield from _gauge("complete", "1 if the run is complete.", one.complete)
        yield from _gauge("staleness_bound", "S, in versions.", one.lag.staleness)
        yield from _gauge("disk_free_bytes", "Free where the run's folder is.", one.disk_free)
        yield from _gauge("event_streams", "Open streams of events.", self._watchers)
        active = {alert.kind: 1.0 for alert in one.alerts if alert.active}
        yield _family(GaugeMetricFamily, "alert", "1 if the hub's alert holds.", "kind", active)

    def _of_rollouts(self) -> Iterable[Metric]:
        counts, rates = self._overview.counts, self._overview.rates
        rejected = counts.rollouts_rejected
        yield CounterMetricFamily(
            "echo_hub_rollouts_handed_in",
            "Rollouts that nodes handed in.",
            value=counts.rollouts_accepted + sum(rejected.values()),
        )
        yield _family(
            CounterMetricFamily,
            "rollouts_rejected",
            "Rollouts that were rejected or dropped.",
            "code",
            rejected,
        )
        places = ("running", "checking", "buffered", "training")
        yield _family(
            GaugeMetricFamily,
            "groups",
            "Groups by where they are.",
            "place",
            {place: getattr(counts, place) for place in places},
        )
        yield _family(
            CounterMetricFamily,
            "audits",
            "Groups chosen for an audit since the hub started.",
            "result",
            {"done": counts.audited, "failed": counts.not_audited},
        )
        yield _family(
            CounterMetricFamily,
            "trained_groups",
            "Groups trained on.",
            "lag",
            {str(lag): count for lag, count in self._overview.lag.histogram.items()},
        )
        yield from _gauge(
            "rollouts_needed_per_second", "What keeps the learner busy.", rates.needed
        )
        yield from _gauge("rollouts_accepted_per_second", "Accepted of late.", rates.had)

    def _of_the_learner(self) -> Iterable[Metric]:
        learner, reward = self._overview.learner, self._overview.reward
        shares = {
            "waiting": learner.idle,
            "training": learner.training,
            "auditing": learner.auditing,
        }
        known = {name: share for name, share in shares.items() if share is not None}
        if known:
            yield _family(
                GaugeMetricFamily, "learner_time_ratio", "Shares of the last updates.", "of", known
            )
        yield from _gauge("update_train_seconds", "Mean of the last updates.", learner.train_s)
        yield from _gauge("update_period_seconds", "From update to update.", learner.period_s)
        if reward.latest is not None:
            yield from _gauge("reward_mean", "Mean reward of an update.", reward.latest.mean)
            yield from _gauge("reward_low", "Its 95 % band.", reward.latest.low)
            yield from _gauge("reward_high", "Its 95 % band.", reward.latest.high)
        if reward.heldout:
            newest = reward.heldout[-1].reward
            yield from _gauge("heldout_reward", "Of the newest evaluation.", newest)
        if self._learner:
            yield _family(
                GaugeMetricFamily,
                "learner",
                "The newest update's metrics.",
                "metric",
                self._learner,
            )

    def _of_the_swarm(self) -> Iterable[Metric]:
        one = self._overview
        states = {
            "in_session": one.counts.nodes_in_session,
            "working": one.counts.nodes_working,
            "standby": one.counts.nodes_standby,
            "banned": one.counts.nodes_banned,
            "known": one.counts.nodes_known,
        }
        yield _family(GaugeMetricFamily, "nodes", "Nodes by what they do.", "state", states)
        spreads = one.dissemination
        yield from _gauge(
            "dissemination_seconds",
            "Until the last node has a version: median of the last ones.",
            spreads.last_s_median,
        )
        yield from _gauge(
            "peer_bytes_ratio", "Of artifact bytes, what nodes sent.", spreads.peer_share
        )


def exposition(overview: Overview, learner: Mapping[str, float], watchers: int) -> bytes:
    """Everything in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(HubCollector(overview, learner, watchers))
    return generate_latest(registry)
