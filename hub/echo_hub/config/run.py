"""`run.toml`: everything an operator decides about a run, strict and documented field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from echo_hub.config.activation import ActivationSection
from echo_hub.config.dashboard import AlertsSection, DashboardSection
from echo_hub.config.guard import GuardSection
from echo_hub.config.learner import LearnerSection
from echo_hub.config.logs import LogsSection, TrackersSection
from echo_hub.config.network import NetworkSection
from echo_hub.config.tasks import (
    CurriculumSection,
    EvaluationSection,
    ScoringSection,
    TaskSection,
)
from echo_hub.tasks.mixture import MOST_ARMS, Mixture
from echo_p2p.toml import Strict, load_toml, wrong
from echo_p2p.wire import MAX_CHUNK_BYTES, MAX_GROUP, MAX_TOKENS

_LONGEST_NAMES = 200


class RunSection(Strict):
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """Name of the run in the network: lower-case letters, digits, hyphens."""
    mode: Literal["async", "sequential"] = "async"
    """`sequential` is staleness 0: learner and nodes take turns."""
    updates: Annotated[int, Field(ge=0)] = 0
    """Learner updates after which the run is complete; 0 goes on until stopped."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seeds the adapter's initial weights and the task's prompts. (The leases' noise comes from a
    secret of the run, so that no node can know it beforehand.)"""


class BaseSection(Strict):
    path: str = "addmix3"
    """Folder of a Hugging Face snapshot (safetensors), or `addmix3`, the packaged small policy."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What nodes and auditor compute in."""
    quantisation: Literal["none", "nf4"] = "none"
    """How the learner holds the base: as it is, or in 4 bits (QLoRA: needs bitsandbytes). Nodes and
    audits compute with the base as it is; the audits of an nf4 learner run on the CPU."""


class SamplingSection(Strict):
    temperature: Annotated[float, Field(ge=0.01, le=10)] = 1.0
    """Divides the logits before sampling."""
    top_k: Annotated[int, Field(ge=0, lt=2**24)] = 0
    """Tokens that may be sampled: the so many likeliest; 0 is all of them."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Tokens that may be sampled: the likeliest whose probabilities reach this sum; 1 is all."""
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 64
    """Longest answer, in tokens; of several turns, all of them with what is observed between."""
    turn_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    """Longest turn of an answer of several, in tokens; 0 is as long as the answer."""
    group_size: Annotated[int, Field(ge=2, le=MAX_GROUP)] = 8
    """G: answers to each prompt."""


class PublishSection(Strict):
    every: Annotated[int, Field(ge=0)] = 0
    """kappa: updates between published versions; 0 chooses max(1, S - 1)."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=MAX_CHUNK_BYTES)] = 1 << 20
    """Size of an artifact's chunks."""
    deltas: bool = True
    """Offer a delta from the version before, where it is smaller than 0.9 of the full snapshot."""


class LeaseSection(Strict):
    seconds: Annotated[float, Field(gt=0, le=86400)] = 300.0
    """How long a node has to answer a lease."""
    groups_per_request: Annotated[int, Field(ge=1, le=1024)] = 16
    """Most leases granted in answer to one request."""
    newcomer_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of one update's groups that nodes without a valid group may have in hand, together."""


class AuditSection(Strict):
    probation: Annotated[int, Field(ge=1)] = 400
    """K: of a node with n consecutive valid groups, a share of K / n (all at most, `floor` at
    least) has its tokens derived again before it is trained on."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Share of the groups of any node that is audited, however good its standing; 1 audits all."""
    half_life_days: Annotated[float, Field(gt=0)] = 14.0
    """Days after which half of a node's valid groups are forgotten."""
    max_margin: Annotated[float, Field(gt=0)] = 0.02
    """A token whose perturbed logit lies further below the best one condemns its group."""
    max_logprob_difference: Annotated[float, Field(gt=0)] = 0.02
    """A claimed log-probability further from the re-derived one condemns its group."""
    beyond_doubt: Annotated[float, Field(ge=1)] = 10.0
    """A margin or difference of so many times what is allowed is fraud, and no numerical noise."""
    ban: bool = True
    """Ban nodes for fraud; without it their false groups are rejected, and they go on."""


class RunConfig(Strict):
    run: RunSection
    base: BaseSection = BaseSection()
    task: TaskSection = TaskSection()
    tasks: Annotated[tuple[TaskSection, ...], Field(max_length=1000)] = ()
    curriculum: CurriculumSection = CurriculumSection()
    sampling: SamplingSection = SamplingSection()
    learner: LearnerSection = LearnerSection()
    guard: GuardSection = GuardSection()
    publish: PublishSection = PublishSection()
    lease: LeaseSection = LeaseSection()
    audit: AuditSection = AuditSection()
    scoring: ScoringSection = ScoringSection()
    evaluation: EvaluationSection = EvaluationSection()
    network: NetworkSection = NetworkSection()
    activation: ActivationSection = ActivationSection()
    dashboard: DashboardSection = DashboardSection()
    alerts: AlertsSection = AlertsSection()
    logs: LogsSection = LogsSection()
    trackers: TrackersSection = TrackersSection()

    @model_validator(mode="after")
    def _kappa_within_staleness(self) -> RunConfig:
        if self.publish.every > max(1, self.staleness):
            raise wrong(
                "publish.every",
                f"{self.publish.every} is more than a staleness of {self.staleness} allows: "
                "nodes could not generate anything fresh enough",
            )
        return self

    @model_validator(mode="after")
    def _overlong_within_limit(self) -> RunConfig:
        if self.learner.overlong_tokens >= self.sampling.max_new_tokens:
            raise wrong(
                "learner.overlong_tokens",
                f"{self.learner.overlong_tokens} is not below sampling.max_new_tokens, "
                f"{self.sampling.max_new_tokens}: the shortest answer would be punished",
            )
        return self

    @model_validator(mode="after")
    def _one_form_of_tasks(self) -> RunConfig:
        if self.tasks and "task" in self.model_fields_set:
            raise wrong("task", "a run has either [task] or [[tasks]]; this file has both")
        names = [task.called for task in self.all_tasks]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise wrong(
                    f"tasks.{number}",
                    f"two tasks are called {name!r}: give each a label of its own",
                )
        if sum(task.buckets for task in self.all_tasks) > MOST_ARMS:
            raise wrong("tasks", f"all their buckets together are more than {MOST_ARMS}")
        return self

    @model_serializer(mode="wrap")
    def _as_it_was_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.tasks:  # what is read back must not have both forms
            del values["task"]
        return values

    @property
    def all_tasks(self) -> tuple[TaskSection, ...]:
        """The tasks of the run: those of `[[tasks]]`, or the one of `[task]`."""
        return self.tasks or (self.task,)

    @property
    def shown_tasks(self) -> str:
        """The run's tasks for people, in at most 200 characters."""
        names = " + ".join(task.called for task in self.all_tasks)
        return names if len(names) <= _LONGEST_NAMES else names[: _LONGEST_NAMES - 3] + "..."

    @property
    def mixture(self) -> Mixture:
        """How prompts are numbered among the tasks."""
        tasks = self.all_tasks
        return Mixture([task.buckets for task in tasks], [task.weight for task in tasks])

    @model_validator(mode="after")
    def _all_weights_can_be_trained(self) -> RunConfig:
        if self.learner.adapter == "none" and self.base.dtype != "float32":
            raise wrong(
                "base.dtype",
                f'{self.base.dtype} does not go with learner.adapter = "none": steps of a usual '
                'size would be rounded away; set "float32", or train a LoRA adapter',
            )
        if self.learner.adapter == "none" and self.base.quantisation != "none":
            raise wrong(
                "base.quantisation",
                'weights of 4 bits cannot be trained: set "none", or learner.adapter = "lora"',
            )
        return self

    @property
    def staleness(self) -> int:
        """S in force: 0 in sequential mode."""
        return 0 if self.run.mode == "sequential" else self.learner.staleness

    @property
    def kappa(self) -> int:
        """Updates between published versions in force."""
        return self.publish.every or max(1, self.staleness - 1)


def load_config(path: Path) -> RunConfig:
    """Read `run.toml`; ConfigError names file, line and field."""
    return load_toml(path, RunConfig)
