"""Is the capacity model right, and is cost-aware activation worth it? Checked by simulation.

Everything is compared with `echo_hub.planner.simulator`, which grants leases with the hub's own
lease book and paces and takes batches from its own buffer:

- `model`: predicted against simulated idle fraction of the learner over random fleets, in points:
  of the recursion (`schedule.predict`) and of the closed forms (`capacity.rule`);
- `threshold`: the least rate that the rule asks for against the one found by bisection;
- `cost`: what an update costs with the cheapest set, with everything active, and co-located;
- `churn`: 5 % of the nodes leave a minute, half the fleet leaves, links slow down by 10, the
  learner by 3: when the learner's idle share is under 5 % again, and how often nodes are switched;
- `decision`: CPU time of a decision over 10,000 nodes;
- `live`: predicted against measured idle fraction of real runs (`echo-hub demo --throttle`), whose
  groups and updates take given times, in six settings (a minute each);
- `staleness`: reward and utilisation of real runs by S (a minute or two each).

    python benchmarks/planner.py [model threshold cost churn decision] [--fleets N] [--json]
    python benchmarks/planner.py live staleness [--only 0,1,...]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner_live import check_live, check_staleness

from echo_hub.planner.activation import Activation, Rules
from echo_hub.planner.capacity import rate_needed, rule
from echo_hub.planner.fleet import known_cards
from echo_hub.planner.schedule import predict
from echo_hub.planner.simulator import Simulation, simulate
from echo_hub.planner.system import Churn, Node, Run, group_seconds
from echo_hub.planner.world import Change, Result, World

A100_ON_DEMAND = 2.45
"""USD an hour, A100 SXM: deploybase.ai/articles/runpod-gpu-pricing, 2026-03-10."""
Facts = dict[str, float | int | str]


def random_fleet(rng: random.Random) -> tuple[Run, list[Node], Churn]:
    """From one node to thirty, up to eight times apart, half to three times what is needed.

    S to 6, dissemination to 1.2 T_train, a group to 2 T_train, checks to .1 T_train, up to 10 %
    rejected, 40 % with pauses, 40 % with 1 to 5 % churn a minute. A lease lasts 6 T_train.
    """
    count = rng.choice([1, 2, 3, 5, 8, 12, 20, 30])
    group_size, groups = rng.choice([4, 8, 16]), rng.choice([8, 16, 32, 64])
    staleness = rng.randint(0, 6)
    kappa = rng.randint(1, max(1, staleness))
    train_s = rng.uniform(10, 60)
    load = math.exp(rng.uniform(math.log(0.4), math.log(3)))
    shares = [math.exp(rng.gauss(0, 0.7)) for _ in range(count)]
    scale = load * group_size * groups / train_s / sum(shares)
    nodes = []
    for i, share in enumerate(shares):
        rate = max(share * scale, group_size / (2 * train_s))
        wanted_s = rng.uniform(0.05, 0.8) * train_s
        nodes.append(
            Node(f"n{i}", rate, groups=max(1, min(16, round(wanted_s * rate / group_size))))
        )
    churn = Churn()
    if rng.random() > 0.6:
        churn = Churn(60 / rng.uniform(0.01, 0.05), rng.uniform(10, 120), rng.choice([0, 0.5, 1]))
    run = Run(
        groups=groups,
        group_size=group_size,
        train_s=train_s,
        staleness=staleness,
        kappa=kappa,
        broadcast_s=rng.uniform(0.02, 1.2) * train_s,
        check_s=rng.uniform(0, 0.1) * train_s,
        rejected=rng.choice([0, 0, 0.05, 0.1]),
        pauses=rng.random() < 0.4,
        lease_s=6 * train_s,
    )
    return run, nodes, churn


def closed_idle(run: Run, nodes: Sequence[Node], churn: Churn) -> float:
    """The closed forms' idle fraction."""
    return 1 - run.train_s / rule(run, nodes, churn).seconds_per_update


def check_model(fleets: int) -> Facts:
    """Errors in points of idle fraction. A fleet is simulated twice: its own luck is shown too."""
    errors, closed, luck = [], [], []
    for seed in range(fleets):
        run, nodes, churn = random_fleet(random.Random(seed))
        found = [
            simulate(run, nodes, seed=s, updates=230, warm_up=30, churn=churn).idle for s in (1, 2)
        ]
        mean = statistics.mean(found)
        errors.append(100 * abs(predict(run, nodes, churn).idle - mean))
        closed.append(100 * abs(closed_idle(run, nodes, churn) - mean))
        luck.append(100 * abs(found[0] - found[1]) / 2)
    return {
        "fleets": fleets,
        "recursion_mean": statistics.mean(errors),
        "recursion_p95": statistics.quantiles(errors, n=20)[-1],
        "recursion_worst": max(errors),
        "recursion_within_3": sum(error <= 3 for error in errors),
        "closed_mean": statistics.mean(closed),
        "closed_within_3": sum(error <= 3 for error in closed),
        "luck_mean": statistics.mean(luck),
        "luck_worst": max(luck),
    }


def check_threshold(fleets: int) -> Facts:
    """Least rates over the least with which the simulated learner waits under 2 %.

    Of the rule, and of the recursion. Fleets whose latency is hidden by the rule with some room, so
    that the rate alone decides: a version's way round takes at most .8 of what S leaves.
    """
    ratios: list[float] = []
    recursion: list[float] = []
    seed = 10_000
    while len(ratios) < fleets:
        seed += 1
        run, nodes, _ = random_fleet(random.Random(seed))
        run = replace(run, staleness=max(3, run.staleness), kappa=min(run.kappa, 2))
        run = replace(run, broadcast_s=min(run.broadcast_s or 0.0, 0.7 * run.train_s))
        total = sum(node.rate for node in nodes)
        needed = rate_needed(run, run.broadcast_s or 0.0) / (1 - run.rejected)
        fair = [replace(node, rate=node.rate * needed / total) for node in nodes]
        told = rule(run, fair)
        if any(group_seconds(run, node) > run.train_s for node in fair):
            continue
        if told.round_s > 0.8 * told.slack_s:
            continue
        truth = bisect(fair, lambda some, r=run: simulate(r, some, updates=130, warm_up=30).idle)
        ratios.append(1 / truth)
        recursion.append(bisect(fair, lambda some, r=run: predict(r, some).idle) / truth)
    return {
        "fleets": fleets,
        "rule_mean": statistics.mean(ratios),
        "rule_least": min(ratios),
        "rule_most": max(ratios),
        "rule_within_10_percent": sum(abs(ratio - 1) <= 0.1 for ratio in ratios),
        "recursion_least": min(recursion),
        "recursion_most": max(recursion),
        "recursion_within_10_percent": sum(abs(ratio - 1) <= 0.1 for ratio in recursion),
    }


def bisect(
    nodes: Sequence[Node], idle: Callable[[Sequence[Node]], float], enough: float = 0.02
) -> float:
    """The least factor on the rates with which the learner waits less than that."""
    low, high = 0.5, 2.0
    while high - low > 0.01:
        middle = (low + high) / 2
        if idle([replace(node, rate=middle * node.rate) for node in nodes]) < enough:
            high = middle
        else:
            low = middle
    return high


def card_nodes(name: str, count: int, tokens: float, *, unlike: random.Random) -> list[Node]:
    """Machines with a known card at the table's price, their rates 10 % apart."""
    row = known_cards()[name.lower()]
    assert row.price is not None
    return [
        Node(
            f"{name}/{i}",
            row.tokens_per_s * row.parameters_b / 8 / tokens * unlike.lognormvariate(0, 0.1),
            groups=4,
            price=row.price,
            watts=row.watts,
        )
        for i in range(count)
    ]


def check_cost() -> Facts:
    """An 8B model, 2,048 tokens an answer, 32 groups of 8; four A100 learn. 36 rented machines.

    T_train 60 s. Nodes may be interrupted and are paid so; the learner's cards may not, and cost
    what the same price list asks on demand. The co-located baseline switches between its two tasks
    at no cost; its rate is the table's, which is scaled from another card, or twice that.
    """
    tokens = 2048.0
    rng = random.Random(7)
    nodes = [
        *card_nodes("RTX 5090", 12, tokens, unlike=rng),
        *card_nodes("RTX 4090", 12, tokens, unlike=rng),
        *card_nodes("RTX 3090", 12, tokens, unlike=rng),
    ]
    run = Run(32, 8, 60.0, 6, 2, broadcast_s=15.0, check_s=2.0, rejected=0.02, lease_s=900.0)
    a100 = known_cards()["a100 sxm"]
    learner = 4 * A100_ON_DEMAND
    colocated_s = run.train_s + run.rollouts / (4 * 2 * a100.tokens_per_s / tokens)
    ours = play(run, nodes, updates=120, warm_up=30, controlled=True)
    everything = play(run, nodes, updates=120, warm_up=30, controlled=False)

    def money(found: Result) -> float:
        return (found.money + learner * found.seconds / 3600) / found.updates

    def rollouts(found: Result) -> float:
        return found.money / found.updates

    base = learner * colocated_s / 3600
    slow_base = learner * (run.train_s + run.rollouts / (4 * a100.tokens_per_s / tokens)) / 3600
    return {
        "ours_idle": ours.idle,
        "everything_idle": everything.idle,
        "ours_money_an_update": money(ours),
        "everything_money_an_update": money(everything),
        "colocated_money_an_update": slow_base,
        "colocated_at_twice_the_rate": base,
        "less_than_everything": 1 - money(ours) / money(everything),
        "less_than_everything_nodes_only": 1 - rollouts(ours) / rollouts(everything),
        "less_than_colocated": 1 - money(ours) / slow_base,
        "less_than_colocated_at_twice_the_rate": 1 - money(ours) / base,
    }


def play(
    run: Run,
    nodes: Sequence[Node],
    *,
    updates: int,
    warm_up: int,
    controlled: bool = True,
    churn: Churn | None = None,
    changes: Sequence[Change] = (),
    seed: int = 0,
) -> Result:
    """One simulation, with the controller or with everything active."""
    controller = Activation(run, nodes, Rules()) if controlled else None
    return Simulation(
        run,
        nodes,
        rng=random.Random(seed),
        churn=churn,
        controller=controller,
        changes=changes,
    ).play(updates, warm_up=warm_up, patience_s=1e7)


def check_churn() -> Facts:
    """40 nodes with three times the rate needed, S = 4, kappa = 2; regimes begin at update 60."""
    rng = random.Random(11)
    run = Run(32, 8, 60.0, 4, 2, broadcast_s=4.0, check_s=1.0, lease_s=240.0)
    each = 3 * run.rollouts / run.train_s / 40
    nodes = [
        Node(f"n{i}", each * rng.lognormvariate(0, 0.4), groups=1, price=rng.uniform(0.2, 1))
        for i in range(40)
    ]
    half = frozenset(node.key for node in rng.sample(nodes, 20))
    churn = Churn(stay_s=60 / 0.05, away_s=120.0, silent=0.5)
    worlds = {
        "half_leaves": World(gone=half),
        "links_slow_by_10": World(links=10.0),
        "learner_slow_by_3": World(train=3.0),
        "learner_fast_again": World(),
    }
    facts: Facts = {}
    for name, world in worlds.items():
        changes = [Change(60, world)]
        if name == "learner_fast_again":
            changes = [Change(30, World(train=3.0)), Change(60, world)]
        found = [play(run, nodes, updates=140, warm_up=20, churn=churn, changes=changes, seed=s)
                 for s in range(5)]  # fmt: skip
        facts[f"{name}_publications_until_under_5_percent"] = max(
            publications_until_calm(one, run, 60) for one in found
        )
        facts[f"{name}_idle_after"] = statistics.mean(
            share_waited(one, 60 + 3 * run.kappa, 140) for one in found
        )
    steady = [play(run, nodes, updates=140, warm_up=20, churn=churn, seed=s) for s in range(5)]
    facts["steady_idle"] = statistics.mean(one.idle for one in steady)
    facts["steady_switches_a_node_in_5_min"] = max(most_switched(one) for one in steady)
    quiet = [play(run, nodes, updates=140, warm_up=20, seed=s) for s in range(5)]
    facts["no_churn_idle"] = statistics.mean(one.idle for one in quiet)
    facts["no_churn_switches_a_node_in_5_min"] = max(most_switched(one) for one in quiet)
    return facts


def share_waited(found: Result, first: int, last: int) -> float:
    """Idle share over these updates."""
    waited, busy = sum(found.waits[first:last]), sum(found.busy[first:last])
    return waited / (waited + busy)


def publications_until_calm(found: Result, run: Run, since: int) -> int:
    """Publications until the learner waits under 5 % of one window, and of all that follows."""
    for publication in range(1, 30):
        begin = since + (publication - 1) * run.kappa
        window = share_waited(found, begin, begin + run.kappa)
        if window < 0.05 and share_waited(found, begin, len(found.busy)) < 0.05:
            return publication
    return 30


def most_switched(found: Result) -> int:
    """Most switches of one node in one stay within five minutes, after ten updates."""
    after = found.starts[10]
    times: dict[str, list[float]] = {}
    for when, key in found.switched:
        if when > after:
            times.setdefault(key, []).append(when)
    return max(
        (sum(when <= t < when + 300 for t in own) for own in times.values() for when in own),
        default=0,
    )


def check_decision() -> Facts:
    """CPU milliseconds of a decision over 10,000 nodes, a third of them needed."""
    rng = random.Random(5)
    nodes = [
        Node(f"n{i}", rng.uniform(0.01, 0.1), groups=1, price=rng.choice([0, rng.uniform(0.1, 3)]))
        for i in range(10_000)
    ]
    needed = sum(node.rate for node in nodes) / 3
    groups = int(needed * 600 / 8)
    run = Run(groups, 8, 600.0, 4, 2, broadcast_s=5.0, lease_s=3000.0)
    made = Activation(run, nodes)
    for node in nodes:
        made.joined(node.key, 0.0)
    times = []
    for step in range(30):
        begun = time.process_time()
        made.decide(60.0 * step)
        times.append(1000 * (time.process_time() - begun))
    return {"median_ms": statistics.median(times), "worst_ms": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", help="which; all if none is named")
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--only", default="", help="numbers of the live settings, like 0,1,2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    only = [int(number) for number in options.only.split(",") if number]
    checks: dict[str, Callable[[], Facts]] = {
        "model": lambda: check_model(options.fleets),
        "threshold": lambda: check_threshold(max(5, options.fleets // 10)),
        "cost": check_cost,
        "churn": check_churn,
        "decision": check_decision,
        "live": lambda: check_live(only),
        "staleness": lambda: check_staleness(only),
    }
    for name in options.checks or [name for name in checks if name not in ("live", "staleness")]:
        facts = checks[name]()
        if options.json:
            print(json.dumps({name: facts}))
            continue
        print(name)
        for key, value in facts.items():
            shown = f"{value:.3g}" if isinstance(value, float) else value
            print(f"  {key.replace('_', ' '):45} {shown}")


if __name__ == "__main__":
    main()
