"""What `echo-hub plan` prints and draws. The table needs nothing; a PNG needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from echo_hub.planner.answer import Option, Plan
from echo_p2p.errors import ConfigError

_BAR = 36


def render_plan(plan: Plan, console: Console | None = None) -> None:
    """The answer, its alternatives, and the curve, as text."""
    console = console or Console()
    table = Table(box=None, title="for 100 updates", title_justify="left")
    for name in ("", "nodes", "S", "kappa", "minutes", "money", "idle", "lag", "limit"):
        table.add_column(name, justify="left" if name in ("", "nodes", "limit") else "right")
    table.add_row("plan", *_cells(plan.best), style="bold")
    for option in plan.alternatives:
        table.add_row("or", *_cells(option))
    if plan.baseline is not None:
        base = plan.baseline
        table.add_row(
            "co-located", base.cards, "0", "-", f"{base.minutes:.1f}", f"{base.money:.2f}"
        )
    console.print(table)
    best = plan.best
    console.print(
        f"\nThe nodes give {best.rule.rate:.3g} rollouts/s that count; "
        f"{best.rule.rate_needed:.3g} are needed. A version is everywhere after "
        f"{best.transfer_s:.3g} s; its way round takes {best.rule.round_s:.3g} s of "
        f"{best.rule.slack_s:.3g}.",
        highlight=False,
    )
    if not plan.enough:
        console.print(f"Not enough. Missing: {plan.missing}", style="bold red", highlight=False)
    elif plan.baseline is not None and plan.baseline.money:
        share = 1 - best.money / plan.baseline.money
        word = "less" if share >= 0 else "more"
        console.print(f"{abs(share):.0%} {word} money than co-located.", highlight=False)
    _sources(plan, console)
    _bars(plan, console)


def _cells(option: Option) -> list[str]:
    nodes = ", ".join(f"{count} x {_name(key)}" for key, count in option.counts.items())
    return [
        nodes,
        str(option.run.staleness),
        str(option.run.kappa),
        f"{option.minutes:.1f}",
        f"{option.money:.2f}",
        f"{option.prediction.idle:.1%}",
        f"{option.prediction.lag_mean:.1f}",
        option.rule.limit,
    ]


def _name(key: str) -> str:
    return key.rsplit(" #", 1)[0]


def _sources(plan: Plan, console: Console) -> None:
    table = Table(box=None, title="\ncounted with", title_justify="left")
    for name in ("card", "rollouts/s", "money/h", "rate from", "price from"):
        table.add_column(name, justify="right" if "/" in name else "left", overflow="fold")
    for kind in plan.kinds:
        table.add_row(
            kind.name,
            f"{kind.node.rate:.3g}",
            f"{kind.node.price:.2f}",
            kind.rate_source,
            kind.price_source,
        )
    console.print(table)


def _bars(plan: Plan, console: Console) -> None:
    finite = [point for point in plan.curve if not math.isinf(point[1])]
    if not finite:
        return
    most = max(minutes for _, minutes, _ in finite)
    console.print("\nminutes for 100 updates as nodes are added, cheapest rollouts first")
    for nodes, minutes, money in finite:
        bar = "█" * max(1, round(_BAR * minutes / most))
        console.print(f"{nodes:>6} {bar:<{_BAR}} {minutes:8.1f} min {money:9.2f}", highlight=False)


def save_png(plan: Plan, path: Path) -> None:
    """Time and money against nodes, with the plan and the baseline marked."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a PNG needs matplotlib.", fix="pip install -c constraints.txt -e '.[plot]'"
        ) from error
    points = [point for point in plan.curve if not math.isinf(point[1])]
    figure = Figure(figsize=(7, 4), layout="constrained")
    time, money = figure.subplots(), None
    nodes = [point[0] for point in points]
    time.plot(nodes, [point[1] for point in points], "o-", color="tab:blue")
    time.set(xlabel="nodes, cheapest rollouts first", ylabel="minutes for 100 updates")
    time.set_ylim(bottom=0)
    money = time.twinx()
    money.plot(nodes, [point[2] for point in points], "s--", color="tab:orange")
    money.set_ylabel("money for 100 updates (dashed)")
    money.set_ylim(bottom=0)
    time.axvline(sum(plan.best.counts.values()), color="gray", linewidth=1)
    if plan.baseline is not None:
        money.axhline(plan.baseline.money, color="tab:red", linewidth=1, linestyle=":")
        figure.suptitle(f"gray: the plan; red, dotted: money of {plan.baseline.cards} co-located")
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from error
