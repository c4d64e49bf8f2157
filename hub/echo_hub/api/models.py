"""What the API answers with, and what it is sent. Everything the dashboard and the SDK see.

Times are Unix seconds, durations seconds, sizes bytes, rates rollouts a second. Nodes are named by
their peer id. Text that came from outside (answers, names, reasons) is data: whoever shows it must
escape it. Fields are only ever added within /api/v1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from echo_hub.api.bottleneck import Limit

PeerId = Annotated[str, StringConstraints(min_length=40, max_length=64, pattern=r"^[1-9A-Za-z]+$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]


class Model(BaseModel):
    """Base of all that is sent and received."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(Model):
    """Any error's body. `code` is for programs; `message` says what happened, `fix` what to do."""

    code: str
    message: str
    fix: str = ""


class Session(Model):
    """Who asks. `csrf` must come back as the header X-CSRF-Token with every request that is not GET
    or HEAD, unless it carries `Authorization: Bearer TOKEN`."""

    authenticated: bool
    required: bool
    """Whether this hub asks for a log-in."""
    csrf: str | None
    run: str | None
    """The run's id, once authenticated."""


class Login(Model):
    token: Annotated[str, StringConstraints(min_length=1, max_length=1024)]


# --- overview -----------------------------------------------------------------------------------


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


# --- nodes --------------------------------------------------------------------------------------


Standing = Literal["newcomer", "proven", "quarantined", "banned"]


class NodeFacts(Model):
    """One node. `rejected` counts rollouts by reason code."""

    node: str
    name: str
    """As the operator named it; empty if not."""
    standing: Standing
    version: int | None
    rate: float
    accepted: int
    rejected_total: int
    rejected: dict[str, int]
    valid: float
    """n: consecutive valid groups, decayed."""
    audit_probability: float
    suspicion: float
    """From 0, nothing, to 1, condemned."""
    accusers: int
    """Nodes that say it sent them a bad chunk."""
    in_session: bool
    reachable: bool | None
    """Whether it says that others can dial it; None if it has not greeted since the hub started."""
    software: str
    engine: str
    first_seen: float | None
    last_seen: float | None
    why: str
    """Why it is banned or quarantined; empty if it is not."""


class NodeDetail(NodeFacts):
    note: str
    addresses: list[str]
    trained_groups: int
    disputed_groups: int
    audited_tokens: int


class NodePage(Model):
    total: int
    """All that match."""
    offset: int
    nodes: list[NodeFacts]


class BanRequest(Model):
    why: Sentence = "the operator decided so."
    """Told to the node."""


class Annotation(Model):
    """The operator's own words for a node. `name` is shown on the public leader board."""

    name: Annotated[str, StringConstraints(max_length=60, strip_whitespace=True)] = ""
    note: Annotated[str, StringConstraints(max_length=2000)] = ""


# --- versions -----------------------------------------------------------------------------------


class VersionFacts(Model):
    version: int
    at: float
    published_at: float | None
    size: int | None
    delta_size: int | None
    delta_ratio: float | None
    """Bytes of the delta over those of the snapshot."""
    reward: float | None
    heldout: HeldOut | None
    groups: int
    """Groups that the update consumed."""
    rolled_back_to: int | None
    withdrawn: bool
    pinned: bool
    kept: bool
    """Its checkpoint is on disk: it can be exported, and gone back to."""
    spread: SpreadFacts | None


class VersionPage(Model):
    total: int
    newest: int | None
    versions: list[VersionFacts]
    """Newest first."""


class VersionDetail(VersionFacts):
    metrics: dict[str, float]
    lags: dict[int, int]
    heldout_tasks: dict[str, HeldOut]


# --- rollouts -----------------------------------------------------------------------------------


class AuditFacts(Model):
    """What deriving a group again found; differences in nats, margins in units of the logits."""

    max_margin: float
    max_logprob_difference: float
    mismatches: int
    tokens: int


class GroupFacts(Model):
    """A group in a list. `trace` is the id that follows it from lease to update."""

    group: int
    trace: str
    node: str
    task: str
    split: str
    prompt_index: int
    version: int
    state: str
    reason: str | None
    rewards: list[float] | None
    update: int | None
    received_at: float
    audited: bool
    disputed: bool
    excerpt: str
    """The beginning of its best answer."""


class GroupPage(Model):
    groups: list[GroupFacts]
    next_before: int | None
    """Pass it as `before` for the next page; None at the end."""
    scanned: int


class Rollout(Model):
    """One answer: its tokens as text pieces with the log-probability of each (raw, temperature 1).
    `observed` are half-open spans of tokens that an environment wrote."""

    text: str
    tokens: list[str]
    logprobs: list[float]
    observed: list[tuple[int, int]]
    finish: str
    reward: float | None
    advantage: float | None


class GroupDetail(GroupFacts):
    prompt: str
    rollouts: list[Rollout]
    audit: AuditFacts | None
    sentence: str
    """Why it was dropped; empty if it was not."""


# --- learner ------------------------------------------------------------------------------------


class Metrics(Model):
    names: list[str]
    latest: dict[str, float]
    versions: int


class SeriesPoint(Model):
    """One bucket of updates: its first version, and mean, least and greatest of the metric."""

    version: int
    at: float
    mean: float
    low: float
    high: float


class Series(Model):
    name: str
    points: list[SeriesPoint]


class SeriesPage(Model):
    step: int
    """Updates in a bucket."""
    series: list[Series]


# --- planner ------------------------------------------------------------------------------------


class Comparison(Model):
    name: str
    unit: str
    predicted: float | None
    measured: float | None


class PlannerFacts(Model):
    """The capacity rule with what is measured now, beside what happens. docs/planning.md."""

    ready: bool
    sentence: str
    nodes: int
    nodes_needed: int | None
    """Nodes of the measured mean rate that would keep the learner busy."""
    limit: str
    compared: list[Comparison]


# --- events, alerts, actions --------------------------------------------------------------------


class EventFacts(Model):
    id: int
    at: float
    kind: str
    sentence: str
    detail: dict[str, Any]


class UpdateFacts(Model):
    """An update, as it is told when it is made. Times in seconds, lags in versions."""

    version: int
    reward: float
    lag_mean: float
    lag_max: int
    waited_s: float
    train_s: float
    period_s: float


class EventPage(Model):
    events: list[EventFacts]
    """Newest first."""
    next_before: int | None


class Alert(Model):
    kind: str
    sentence: str
    since: float
    active: bool


class PauseRequest(Model):
    why: Sentence = "an operator paused it."


class Done(Model):
    """An action's outcome. `done` is false if it waits for the update in hand to end."""

    done: bool
    sentence: str


# --- public -------------------------------------------------------------------------------------


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


class Health(Model):
    status: Literal["ok"]
    run: Annotated[str, Field(description="The run's id.")]


Overview.model_rebuild()
