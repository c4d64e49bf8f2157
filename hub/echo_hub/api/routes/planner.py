"""/api/v1/planner: the capacity rule with what is measured now, beside what happens."""

from __future__ import annotations

import math
from statistics import fmean

from fastapi import APIRouter

from echo_hub.api import models
from echo_hub.api.placing import activation_facts
from echo_hub.api.site import TheView
from echo_hub.api.view import View
from echo_hub.planner.capacity import Rule, rule
from echo_hub.planner.system import Node, Run
from echo_hub.publish.spread import SHOWN, median_last_s
from echo_hub.tally import RATE_WINDOW_S
from echo_hub.update_facts import Shares

router = APIRouter(tags=["planner"])

_REJECTED_S = 180.0
_MOST_REJECTED = 0.99


@router.get("/planner")
async def get_planner(view: TheView) -> models.PlannerFacts:
    """What docs/planning.md's closed forms say of the nodes that work now, and what happens."""
    now = view.learner()
    activation = activation_facts(view.activation())
    rates = _rates(view)
    if not now.recent or not rates:
        what = "no update after the first was made yet" if not now.recent else "no node works now"
        return models.PlannerFacts(
            ready=False, sentence=f"Nothing can be compared: {what}.", nodes=len(rates),
            nodes_needed=None, limit="", compared=[], activation=activation,
        )  # fmt: skip
    run = _run(view, fmean(one.train_s for one in now.recent))
    found = rule(run, [Node(key=str(number), rate=rate) for number, rate in enumerate(rates)])
    mean = found.rate / len(rates)
    needed = None if math.isinf(found.rate_needed) else math.ceil(found.rate_needed / mean - 1e-9)
    return models.PlannerFacts(
        ready=True,
        sentence=_sentence(found, len(rates), needed),
        nodes=len(rates),
        nodes_needed=needed,
        limit=found.limit,
        compared=_compared(view, run, found),
        activation=activation,
    )


def _rates(view: View) -> list[float]:
    """Of the nodes that work: at full load as the controller measures them, or what they gave of
    late before it does."""
    now = view.activation()
    if now is not None:
        everybody = now.mode != "on"
        known = [one.speed for one in now.places if one.speed and (one.active or everybody)]
        if known:
            return known
    return view.front.rates()


def _run(view: View, train_s: float) -> Run:
    config = view.config
    adapters = [one for one in view.spreads() if one.kind == "adapter"]
    return Run(
        groups=config.learner.groups_per_update,
        group_size=config.sampling.group_size,
        train_s=train_s,
        staleness=config.staleness,
        kappa=config.kappa,
        artifact=float(adapters[-1].size) if adapters else 0.0,
        broadcast_s=median_last_s(adapters[-SHOWN:]) or 0.0,
        rejected=min(_MOST_REJECTED, view.samples.over(_REJECTED_S).share_rejected),
        lease_s=config.lease.seconds,
    )


def _sentence(found: Rule, nodes: int, needed: int | None) -> str:
    have = f"{nodes} node{'s give' if nodes > 1 else ' gives'} {found.rate:.3g} rollouts/s"
    if found.holds:
        return f"{have}; {found.rate_needed:.3g} keep the learner busy: it need not wait."
    if needed is not None and needed > nodes:
        more = f"{needed - nodes} more of the mean rate would"
        return f"{have}; {found.rate_needed:.3g} keep the learner busy: {more}."
    return (
        f"{have}, which is enough, but a version's way round takes {found.round_s:.3g} s and the "
        f"staleness bound leaves {found.slack_s:.3g} s for it."
    )


def _compared(view: View, run: Run, found: Rule) -> list[models.Comparison]:
    recent = view.learner().recent
    shares = Shares.of(recent)
    period_s = fmean(one.period_s for one in recent)
    idle = max(0.0, 1.0 - run.train_s / found.seconds_per_update)
    had = view.samples.over(RATE_WINDOW_S).rate
    rate, used = run.rollouts / found.seconds_per_update, run.rollouts / period_s
    rows = [
        ("seconds per update", "s", found.seconds_per_update, period_s),
        ("idle", "share", idle, shares.waiting),
        ("rate", "rollouts/s", min(found.rate, rate), had),
        ("consumed", "rollouts/s", rate, used),
    ]
    return [
        models.Comparison(name=name, unit=unit, predicted=_finite(predicted), measured=measured)
        for name, unit, predicted, measured in rows
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
