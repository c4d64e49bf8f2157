"""What the configuration says of who works: paces, and the roster that keeps nodes on standby."""

from __future__ import annotations

from echo_hub.config import RunConfig
from echo_hub.planner.activation import Rules
from echo_hub.planner.roster import Roster
from echo_hub.planner.system import Run
from echo_hub.rollouts.granting import REQUESTS_A_NODE_MAY_HOLD
from echo_hub.rollouts.pace import Paces

_UNMEASURED_S = 1.0  # T_train before the first update, by which nothing is decided


def paces_of(config: RunConfig) -> Paces:
    """How many leases each node may hold."""
    return Paces(lease_s=config.lease.seconds, most=_most(config))


def roster_of(config: RunConfig, paces: Paces) -> Roster:
    """Who may have work in this run."""
    section = config.activation
    run = Run(
        groups=config.learner.groups_per_update,
        group_size=config.sampling.group_size,
        train_s=_UNMEASURED_S,
        staleness=config.staleness,
        kappa=config.kappa,
        lease_s=config.lease.seconds,
    )
    rules = Rules(
        headroom=section.headroom,
        floor=section.headroom / 3,
        dwell_s=section.dwell_s,
        settle_s=section.settle_s,
        turn_s=section.turn_s,
    )
    return Roster(run, rules, mode=section.mode, most=_most(config), limit=paces.limit)


def _most(config: RunConfig) -> int:
    return config.lease.groups_per_request * REQUESTS_A_NODE_MAY_HOLD
