"""Who works and who is on standby, as the API says it."""

from __future__ import annotations

import math
from typing import Literal

from echo_hub.activating import ActivationNow
from echo_hub.api.models import ActivationFacts, PlacedNode
from echo_hub.api.view import peer_id
from echo_hub.planner.activation import Decision, Place
from echo_hub.planner.scaling import more_nodes

SHOWN = 100
"""Nodes that are named."""
State = Literal["working", "trial", "standby", "too slow"]


def activation_facts(now: ActivationNow | None) -> ActivationFacts | None:
    """None before the controller has decided anything."""
    if now is None or now.decision is None:
        return None
    decision = now.decision
    active = len(decision.active)
    missing: Literal["", "rate", "latency"] = (
        "" if not decision.missing else ("rate" if decision.missing == "rate" else "latency")
    )
    places = sorted(now.places, key=lambda one: (not one.active, -one.speed))
    return ActivationFacts(
        mode=now.mode,
        sentence=_sentence(now, decision),
        needed=decision.needed,
        wanted=decision.wanted,
        rate=decision.rate,
        active=active,
        standby=len(now.places) - active,
        on_trial=decision.on_trial,
        money=decision.money,
        missing=missing,
        wish="" if now.wish is None else f"{now.wish.wish}: {now.wish.sentence}",
        wished_at=now.wished_at,
        outcome=now.outcome,
        trouble=now.trouble,
        nodes=[_placed(one) for one in places[:SHOWN]],
    )


def _sentence(now: ActivationNow, decision: Decision) -> str:
    active, there = len(decision.active), len(now.places)
    who = f"{active} of {there} nodes {'work' if now.mode == 'on' else 'would be enough'}"
    have = f"{decision.rate:.3g} rollouts/s of {decision.needed:.3g} needed"
    if decision.on_trial and decision.rate < decision.needed:
        return f"{who}: {decision.on_trial} of them are being measured ({have} so far)."
    if decision.missing == "rate":
        more = more_nodes(decision)
        lacking = f"about {more} more node{'s' if more > 1 else ''} like these"
        return f"All {active} nodes work and are too few: {have}. Missing: {lacking}."
    if decision.missing == "latency":
        return (
            f"{who}, {have}, and the learner still waits: a version's way round takes too long. "
            "Missing: more staleness (learner.staleness), faster links, or smaller groups."
        )
    return f"{who}: {have}."


def _placed(place: Place) -> PlacedNode:
    state: State = "standby"
    if place.active:
        state = "trial" if place.on_trial else "working"
    elif not place.in_time:
        state = "too slow"
    return PlacedNode(
        node=peer_id(bytes.fromhex(place.node.key)),
        state=state,
        rate=place.speed,
        price=place.node.price,
        since_s=place.changed_s if math.isfinite(place.changed_s) else None,
        turn_s=place.turn_s,
    )
