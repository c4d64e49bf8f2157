"""The run as a whole: the overview and its alerts, and what everybody may see."""

from __future__ import annotations

from echo_hub.api.bottleneck import Limit
from echo_hub.api.models.base import Model


class Alert(Model):
    kind: str
    sentence: str
    since: float
    active: bool


class RunFacts(Model):
    id: str
    task: str
    base: str
    mode: str
    staleness: int
    """S."""
    kappa: int
    """Updates between published versions."""
    groups_per_update: int
    group_size: int
    updates: int
    """Updates after which it is complete; 0 goes on until stopped."""
    peer_id: str
    addresses: list[str]


class Paused(Model):
    version: int
    why: str
    at: float


class RewardPoint(Model):
    """One update's mean reward, and its 95 % confidence band (over groups)."""

    version: int
    at: float
    mean: float
    low: float
    high: float
    rollouts: int


class HeldOut(Model):
    """Reward of a version on held-out prompts, with its 95 % confidence interval."""

    version: int
    reward: float
    low: float
    high: float
    prompts: int


class Reward(Model):
    latest: RewardPoint | None
    updates: list[RewardPoint]
    """The last 300 at most, oldest first."""
    heldout: list[HeldOut]
    """Oldest first."""


class LearnerState(Model):
    doing: str
    for_s: float
    idle: float | None
    """Share of the last updates' time that it waited; None before the second update."""
    training: float | None
    auditing: float | None
    train_s: float | None
    """Seconds of an update, mean of the last ones."""
    period_s: float | None
    """Seconds from update to update, mean of the last ones."""


class Lag(Model):
    staleness: int
    histogram: dict[int, int]
    """Groups trained on, by lag."""
    last_mean: float | None
    last_max: int | None


class Rates(Model):
    """Rollouts a second. `needed` keeps the learner busy: R over the seconds of an update."""

    needed: float | None
    had: float
    """Accepted within the last 30 s."""
    consumed: float | None
    """Trained on, over the last updates."""
    rejected: float
    """Share of what was handed in within the last minutes."""


class SpreadFacts(Model):
    """How one version reached the nodes; docs/operator.md says what each field is."""

    version: int
    size: int
    published_at: float
    nodes_in_session: int
    nodes_reached: int
    nodes: int
    half_s: float | None
    nine_tenths_s: float | None
    last_s: float | None
    hub_bytes: int
    peer_bytes: int
    peer_share: float | None


class Dissemination(Model):
    last_s_median: float | None
    peer_share: float | None
    recent: list[SpreadFacts]


class Bottleneck(Model):
    """What limits the run now, in a sentence, and what an operator can do about it."""

    limit: Limit
    sentence: str
    fix: str


class Counts(Model):
    """Rollouts by what became of them; groups by where they are; nodes."""

    rollouts_accepted: int
    rollouts_rejected: dict[str, int]
    running: int
    checking: int
    buffered: int
    training: int
    audited: int
    not_audited: int
    nodes_in_session: int
    nodes_working: int
    nodes_standby: int
    """Kept ready while others work."""
    nodes_banned: int
    nodes_known: int


class Overview(Model):
    """Is it learning, is it healthy, what limits it?"""

    at: float
    run: RunFacts
    version: int
    published: int | None
    paused: Paused | None
    complete: bool
    reward: Reward
    learner: LearnerState
    lag: Lag
    rates: Rates
    dissemination: Dissemination
    counts: Counts
    tasks: dict[str, dict[str, float]]
    disk_free: int
    bottleneck: Bottleneck
    alerts: list[Alert]


class PublicNode(Model):
    """A person with all their machines, or a machine that nobody vouched for.

    `name` is the person's own, else the operator's, else a pseudonym that says nothing of its key.
    """

    name: str
    machines: int
    tokens: int
    """Sampled, of accepted rollouts that are not disputed: what `echo-node credit` says."""
    accepted: int
    """Those rollouts."""
    share: float
    """Of all accepted rollouts."""


class PublicProgress(Model):
    run: str
    task: str
    base: str
    version: int
    updates: int
    reward: Reward
    nodes_in_session: int
    rollouts_accepted: int
    leaders: list[PublicNode]
    join: str
    """The command that a volunteer types."""
    bootstrap: str
    """The file that it names."""
