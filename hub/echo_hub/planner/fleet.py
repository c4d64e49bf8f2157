"""The fleet file of `echo-hub plan`: which machines there are, what they cost, what the run asks.

Strict TOML, as every configuration here. What it does not say of a card is taken from the packaged
table `cards.toml`, which names the source and the date of each number.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field

from echo_hub.config import RunConfig
from echo_hub.planner.system import UNLIMITED, Churn, Node, Run
from echo_p2p.errors import ConfigError
from echo_p2p.toml import Strict, load_toml, parse_toml

BYTES_A_MBIT = 125_000
_AT_A_TIME = 64  # answers, where nothing is said of it
_BYTES_A_WEIGHT = 4  # adapters are saved in float32

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CardRow(Strict):
    """A row of the packaged table."""

    name: str
    tokens_per_s: Positive
    parameters_b: Positive
    rate_source: str
    rate_date: str
    price: NotNegative | None = None
    price_source: str = ""
    price_date: str = ""
    watts: Positive


class CardTable(Strict):
    cards: tuple[CardRow, ...]


class CardSection(Strict):
    name: str
    """Which card; a row of the packaged table, or a name of your own with a rate."""
    count: Annotated[int, Field(ge=1, le=100_000)]
    """Machines with one such card."""
    price: NotNegative | None = None
    """Money an hour for each; 0 for volunteers. Left out: the table's."""
    rollouts_per_s: Positive | None = None
    """Measured rollouts a second of one; goes before everything else."""
    tokens_per_s: Positive | None = None
    """Generated tokens a second of one, for this run's model."""
    at_a_time: Annotated[int, Field(ge=1)] = _AT_A_TIME
    """Answers that one generates at the same time."""
    up_mbit: NotNegative = 20.0
    """Upload of one, in megabits a second; 0 where nothing can be sent to others."""
    down_mbit: Positive = 100.0
    """Download of one, in megabits a second."""
    watts: Positive | None = None
    """Power at work; orders volunteers."""


class LearnerSection(Strict):
    train_s: Positive
    """T_train: seconds of one update. Measured: a run's log has it."""
    card: str | None = None
    """The learner's card, for the co-located baseline."""
    count: Annotated[int, Field(ge=1)] = 1
    """How many of them."""
    price: NotNegative | None = None
    """Money an hour for each. Left out: the table's; 0 if the learner costs nothing more."""
    tokens_per_s: Positive | None = None
    """Tokens a second that one of them would generate."""
    up_mbit: Positive = 200.0
    """Upload of the hub, in megabits a second."""


class WorkSection(Strict):
    tokens: Positive | None = None
    """Mean length of an answer, in tokens. Left out: the longest allowed."""
    spread: NotNegative = 0.5
    """Standard deviation of that length, in means."""
    parameters_b: Positive | None = None
    """Size of the base model in billions; the table's rates are scaled by it."""
    adapter_mb: Positive | None = None
    """Size of a published version, in megabytes. Left out: computed from the base model."""
    check_s: NotNegative = 1.0
    """Seconds from a group's arrival until it may be trained on."""
    rejected: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Share of groups that fail a check."""
    pauses: bool = False
    """Nodes do not generate while they download. Ours do."""
    broadcast_s: NotNegative | None = None
    """T_bcast as measured. Left out: what the links allow at best."""


class PlanSection(Strict):
    max_staleness: Annotated[int, Field(ge=0, le=100)] = 6
    """Largest S to consider; up to 6 rewards were found as good as without (ECHO-2)."""
    idle: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Idle share of the learner that is good enough."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Rate wanted beyond what the rule needs."""
    stay_min: Positive | None = None
    """Minutes a node stays on average; left out: for ever."""
    away_min: NotNegative = 5.0
    """Minutes it is away then."""


class Fleet(Strict):
    learner: LearnerSection
    cards: Annotated[tuple[CardSection, ...], Field(min_length=1)]
    work: WorkSection = WorkSection()
    plan: PlanSection = PlanSection()


@dataclass(frozen=True)
class Kind:
    """Equal machines: one of them as a node, how many, and where its numbers are from."""

    name: str
    node: Node
    count: int
    rate_source: str
    price_source: str


def load_fleet(path: Path) -> Fleet:
    """Read a fleet file; ConfigError names file, line and field."""
    return load_toml(path, Fleet)


def known_cards() -> dict[str, CardRow]:
    """The packaged table, by lower-case name."""
    text = (files("echo_hub.planner") / "cards.toml").read_text(encoding="utf-8")
    table = parse_toml(text, CardTable, source="cards.toml")
    return {row.name.lower(): row for row in table.cards}


def base_run(config: RunConfig, fleet: Fleet, *, staleness: int, kappa: int) -> Run:
    """What the run asks, with this S and kappa."""
    work = fleet.work
    artifact = work.adapter_mb * 1e6 if work.adapter_mb else adapter_bytes(config)
    if artifact is None:
        raise ConfigError(
            f"the size of an adapter for {config.base.path} is not known.",
            fix="Say it in the fleet file: [work] adapter_mb = ...",
        )
    return Run(
        groups=config.learner.groups_per_update,
        group_size=config.sampling.group_size,
        train_s=fleet.learner.train_s,
        staleness=staleness,
        kappa=kappa,
        artifact=artifact,
        hub_up=fleet.learner.up_mbit * BYTES_A_MBIT,
        broadcast_s=work.broadcast_s,
        check_s=work.check_s,
        rejected=work.rejected,
        pauses=work.pauses,
        lease_s=config.lease.seconds,
        spread=work.spread,
    )


def churn_of(fleet: Fleet) -> Churn:
    """How nodes come and go."""
    stay = fleet.plan.stay_min
    return Churn() if stay is None else Churn(stay * 60, fleet.plan.away_min * 60)


def kinds_of(config: RunConfig, fleet: Fleet) -> list[Kind]:
    """The fleet's machines with all their numbers; ConfigError says which one lacks what."""
    table = known_cards()
    return [_kind(config, fleet, number, table) for number in range(len(fleet.cards))]


def _kind(config: RunConfig, fleet: Fleet, number: int, table: dict[str, CardRow]) -> Kind:
    card = fleet.cards[number]
    row = table.get(card.name.lower())
    rate, source = card.rollouts_per_s, "given"
    if rate is None:
        tokens, source = tokens_rate(card.name, card.tokens_per_s, row, fleet)
        rate = tokens / answer_tokens(config, fleet)
    price, price_source = price_of(card.name, card.price, row)
    group_size = config.sampling.group_size
    node = Node(
        key=f"{card.name} #{number + 1}",
        rate=rate,
        groups=max(1, card.at_a_time // group_size),
        price=price,
        up=card.up_mbit * BYTES_A_MBIT,
        down=card.down_mbit * BYTES_A_MBIT,
        watts=card.watts or (row.watts if row else 0.0),
    )
    return Kind(card.name, node, card.count, source, price_source)


def answer_tokens(config: RunConfig, fleet: Fleet) -> float:
    """Mean tokens of an answer; the longest allowed, if nothing is said."""
    return fleet.work.tokens or float(config.sampling.max_new_tokens)


def tokens_rate(
    name: str, given: float | None, row: CardRow | None, fleet: Fleet
) -> tuple[float, str]:
    """Tokens a second of a card for this run's model, and where that is from."""
    if given is not None:
        return given, "given"
    if row is None:
        raise ConfigError(
            f"nothing is known of a card {name!r}.",
            fix="Give it tokens_per_s or rollouts_per_s, or use one of: "
            + ", ".join(known.name for known in known_cards().values()),
        )
    size = fleet.work.parameters_b
    if size is None:
        raise ConfigError(
            f"the table's rate of {name} is for {row.parameters_b:g} billion parameters, and the "
            "size of your model is not known.",
            fix="Say it in the fleet file: [work] parameters_b = ... (or give the card a rate).",
        )
    rate = row.tokens_per_s * row.parameters_b / size
    return rate, f"{row.rate_source} ({row.rate_date}), for {size:g}B"


def price_of(name: str, given: float | None, row: CardRow | None) -> tuple[float, str]:
    """Money an hour of a card, and where that is from."""
    if given is not None:
        return given, "given"
    if row is None or row.price is None:
        raise ConfigError(
            f"the price of {name} is not known.",
            fix="Give it a price an hour in the fleet file; 0 for volunteers.",
        )
    return row.price, f"{row.price_source} ({row.price_date})"


def adapter_bytes(config: RunConfig) -> float | None:
    """Size of a version of the run, from the base model's shape; None if that is not at hand."""
    from echo_hub.learner.fit import shape_of, trained_weights
    from echo_hub.models import addmix3_path

    shape = shape_of(addmix3_path() if config.base.path == "addmix3" else Path(config.base.path))
    return None if shape is None else float(_BYTES_A_WEIGHT * trained_weights(shape, config))


def unlimited(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return None if value == UNLIMITED else value
