"""`[task]` or `[[tasks]]`, `[curriculum]`, `[scoring]`, `[evaluation]`: prompts and rewards."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from echo_hub.config.fields import Fraction
from echo_p2p.toml import Strict, wrong


class TaskSection(Strict):
    name: str = "addmix3"
    """A built-in task, as `sokoban`, one of others, as `reasoning-gym:<dataset>` or
    `dataset:<file or name>`, or your own: `file:` and a Python file, or `module:` and an importable
    module. docs/tasks.md has them all."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task."""
    template: Literal["raw", "chat"] = "raw"
    """`chat` wraps each prompt as a user message in the tokenizer's chat template."""
    label: Annotated[str, Field(pattern=r"^[^\s.=\[\]]*$", max_length=60)] = ""
    """What metrics call it, where a run has several tasks; empty is its name."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """How often its prompts are drawn, in proportion to the weights of the other tasks."""
    solved_at: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Reward from which on an answer counts as solved, in pass rates."""
    buckets: Annotated[int, Field(ge=1, le=65536)] = 1
    """Parts of its prompts of which the curriculum keeps a pass rate each: prompt i is in part
    i modulo this. As many as a dataset has rows: one for each row."""

    kept: str = ""
    """A file made by `echo-hub filter`: only the prompts it kept are trained on. Empty: all."""

    @property
    def called(self) -> str:
        """Its name in metrics, and for nodes: without the path of a file here."""
        family, colon, place = self.name.partition(":")
        if not self.label and colon and family == "file":
            return f"file:{PurePath(place.partition('.py')[0]).name}"
        return self.label or self.name


class CurriculumSection(Strict):
    window: Annotated[int, Field(ge=0, le=1000)] = 0
    """The last groups of a task, or of a bucket of its prompts, that its pass rate is taken of;
    0 draws by the weights alone."""
    low: Fraction = 0.0
    """A pass rate of this or less counts as never solved, once the window is full."""
    high: Fraction = 1.0
    """A pass rate of this or more counts as always solved, once the window is full."""
    outside: Fraction = 0.1
    """Share of its weight that is left to what is never or always solved; 0 drops it for good."""

    @model_validator(mode="after")
    def _something_between(self) -> CurriculumSection:
        if self.low >= self.high:
            raise wrong("low", f"it is not below high, {self.high:g}: every task would be outside")
        return self


class ScoringSection(Strict):
    processes: Annotated[int, Field(ge=1, le=4096)] = 1
    """Scorer processes."""
    pool: Annotated[str, Field(pattern=r"^(local|ray|ray://[^\s/]+:[0-9]+)$")] = "local"
    """Where they run: `local` is the hub's machine; `ray://host:10001` a Ray cluster through its
    client port, `ray` the cluster that the hub's machine is part of."""
    timeout_s: Annotated[float, Field(gt=0, le=86400)] = 20.0
    """A reward that takes longer is a recorded failure, never a zero; its scorer is killed."""
    memory: Annotated[int, Field(ge=16, le=2**30)] = 2048
    """MiB that making prompts and rewards may take, beyond what a scorer needs to start; more is a
    recorded failure too."""
    network: bool = False
    """Let tasks use the network after their start. Rewards of your own may need it, for a judge."""
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Environment variables of the hub that scorers see too; beside these they see PATH, HOME and
    a few that Python and its libraries need. Name here what a task needs, HF_TOKEN for instance."""


class EvaluationSection(Strict):
    prompts: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Held-out prompts, one sampled answer each; 0 evaluates nothing. Several tasks share them."""
    every: Annotated[int, Field(ge=0)] = 0
    """Updates between evaluations, each of the next version that is published; 0 evaluates only
    the first version and the last."""
    audit: Fraction = 1.0
    """Least share of the held-out answers that are audited before they count."""
