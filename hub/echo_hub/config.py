"""`run.toml`: everything an operator decides about a run, strict and documented field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from echo_p2p.errors import EchoError
from echo_p2p.net.addresses import parse, parse_listen, peer_of
from echo_p2p.rates import Limits, parse_rate
from echo_p2p.toml import Strict, load_toml, wrong
from echo_p2p.wire import MAX_CHUNK_BYTES, MAX_GROUP, MAX_TOKENS

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]

LINEAR_LAYERS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip


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


class TaskSection(Strict):
    name: str = "addmix3"
    """`addmix3`, `few-shot-addition`, or `reasoning-gym:<dataset>`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task."""
    template: Literal["raw", "chat"] = "raw"
    """`chat` wraps each prompt as a user message in the tokenizer's chat template."""


class SamplingSection(Strict):
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Divides the logits before sampling."""
    top_k: Annotated[int, Field(ge=0, lt=2**24)] = 0
    """Tokens that may be sampled: the so many likeliest; 0 is all of them."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Tokens that may be sampled: the likeliest whose probabilities reach this sum; 1 is all."""
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 64
    """Longest answer, in tokens."""
    group_size: Annotated[int, Field(ge=2, le=MAX_GROUP)] = 8
    """G: answers to each prompt."""


class LearnerSection(Strict):
    groups_per_update: Positive = 32
    """B: groups in one update (R = B * G rollouts)."""
    staleness: Annotated[int, Field(ge=0, le=100)] = 2
    """S: no rollout with a greater lag enters an update, in versions. Ignored when sequential."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """AdamW step size."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    """AdamW moment decays."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW decoupled weight decay."""
    clip: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0)]] = (0.2, 0.2)
    """Ratio clip below and above 1."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient norm is clipped to this."""
    rank: Positive = 16
    """LoRA rank r."""
    alpha: Positive = 32
    """LoRA alpha; the update is scaled by alpha / r."""
    target_modules: tuple[str, ...] = LINEAR_LAYERS
    """Linear layers that get an adapter."""
    microbatch_tokens: Positive = 8192
    """Padded tokens in one forward and backward pass."""
    device: str = "cpu"
    """torch device of the learner."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of the learner; 0 leaves torch's default."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 4
    """Checkpoints kept on disk beside the published versions."""


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


class ScoringSection(Strict):
    processes: Positive = 1
    """Scorer processes."""
    timeout_s: Annotated[float, Field(gt=0)] = 20.0
    """A reward that takes longer is a recorded failure, never a zero; its scorer is killed."""


class EvaluationSection(Strict):
    prompts: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Held-out prompts, one sampled answer each; 0 evaluates nothing."""
    every: Annotated[int, Field(ge=0)] = 0
    """Updates between evaluations; 0 evaluates only the first version and the last."""


class NetworkSection(Strict):
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/42420",)
    """Multiaddrs to listen on."""
    announce: tuple[str, ...] = ()
    """Multiaddrs given to nodes instead of the listened ones, without /p2p."""
    max_upload: str = "unlimited"
    """Most that the hub sends a second, like "100mbit" or "12.5MB", all connections together. A
    little under what the uplink really does, nodes are answered soonest while a version is sent."""
    keys_per_address: Positive = 32
    """Nodes that one network address (of IPv6: one /64) may bring within an hour; loopback is not
    counted."""
    directory: bool = True
    """Run a directory (DHT) process and publish the run's record in it."""
    directory_listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/42421",)
    """Multiaddrs of the directory process."""
    directory_peers: tuple[str, ...] = ()
    """Other directory peers to join, with /p2p."""

    @field_validator("max_upload")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        try:
            rate = parse_rate(value)
        except EchoError as error:
            raise ValueError(str(error).rstrip(".")) from error
        if rate == 0:
            raise ValueError("nobody could get a version from a hub that sends none")
        return value

    @property
    def limits(self) -> Limits:
        """What the hub may send and receive."""
        return Limits(upload=parse_rate(self.max_upload))

    @field_validator("listen", "announce", "directory_listen", "directory_peers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        check = {"announce": parse, "directory_peers": peer_of}.get(
            info.field_name or "", parse_listen
        )
        for address in value:
            try:
                check(address)
            except EchoError as error:
                raise ValueError(error.message.rstrip(".")) from error
            if info.field_name == "announce" and "/p2p/" in address:
                raise ValueError(f"{address!r} is wanted without /p2p and a peer id")
        return value


class RunConfig(Strict):
    run: RunSection
    base: BaseSection = BaseSection()
    task: TaskSection = TaskSection()
    sampling: SamplingSection = SamplingSection()
    learner: LearnerSection = LearnerSection()
    publish: PublishSection = PublishSection()
    lease: LeaseSection = LeaseSection()
    audit: AuditSection = AuditSection()
    scoring: ScoringSection = ScoringSection()
    evaluation: EvaluationSection = EvaluationSection()
    network: NetworkSection = NetworkSection()

    @model_validator(mode="after")
    def _kappa_within_staleness(self) -> RunConfig:
        if self.publish.every > max(1, self.staleness):
            raise wrong(
                "publish.every",
                f"{self.publish.every} is more than a staleness of {self.staleness} allows: "
                "nodes could not generate anything fresh enough",
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
