"""Will it fit? What the learner of a configuration needs at most, before anything is loaded. Pure.

The layers counted are those of Llama and its kin (RMSNorm, rotary attention with grouped keys,
gated MLP), tensor by tensor as automatic differentiation keeps them; on the packaged model and on
SmolLM2-135M that is within 2 % of what is kept (tests, benchmarks/learner_memory.py). Other layers
of like width need about as much. All sizes are bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_hub.config import RunConfig
from echo_hub.config.adapter import LINEAR_LAYERS
from echo_p2p.errors import ConfigError

_F32 = 4
_WIDTH = {"float32": 4, "bfloat16": 2}
_STATES = 9
"""Float32 numbers for each trained weight: itself, its gradient and the one before, AdamW's two
moments; and all but the gradient once more, to go back to if the update is refused."""
_NF4 = 0.516
"""Bytes of a weight in 4 bits, with its share of scales that are quantised too."""
_LOGIT_BUFFERS = 4
_MAX_HEADER = 16 << 20


@dataclass(frozen=True)
class Shape:
    """A base model's sizes. `queries` and `keys` are the widths of all query and key heads."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    queries: int
    keys: int
    parameters: int

    def sides(self, target: str) -> tuple[int, int]:
        """Inputs and outputs of a linear layer, by the end of its name."""
        known = {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.inner),
            "up_proj": (self.hidden, self.inner),
            "down_proj": (self.inner, self.hidden),
        }
        return known.get(target.rpartition(".")[2], (self.hidden, self.hidden))


@dataclass(frozen=True)
class Need:
    """What a learner holds at once, at most.

    `base`: the base's weights. `trained`: what is trained, its gradient, the optimiser's state and
    the copy that a refused update goes back to. `activations`: of one micro-batch. `logits`: of so
    many tokens as are computed at once. `audit`: the weights of the version that is audited.
    """

    base: int
    trained: int
    activations: int
    logits: int
    audit: int

    @property
    def total(self) -> int:
        return self.base + self.trained + self.activations + self.logits + self.audit


def shape_of(base: Path) -> Shape | None:
    """The sizes that a snapshot's files state; None if they state too little."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        return Shape(
            vocabulary=int(config["vocab_size"]),
            hidden=hidden,
            inner=int(config.get("intermediate_size") or 4 * hidden),
            layers=int(config["num_hidden_layers"]),
            queries=head * heads,
            keys=head * int(config.get("num_key_value_heads") or heads),
            parameters=sum(map(_numbers_in, base.glob("*.safetensors"))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _numbers_in(file: Path) -> int:
    """Numbers in a safetensors file, by its header."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > _MAX_HEADER:
            raise ValueError("no safetensors header")
        header = json.loads(opened.read(length))
    total = 0
    for name, entry in header.items():
        count = 1
        for size in entry["shape"] if name != "__metadata__" else (0,):
            count *= size
        total += count
    return total


def trained_weights(shape: Shape, config: RunConfig) -> int:
    """How many weights are trained."""
    if config.learner.adapter == "none":
        return shape.parameters
    sides = map(shape.sides, targets_of(config))
    return shape.layers * config.learner.rank * sum(a + b for a, b in sides)


def targets_of(config: RunConfig) -> tuple[str, ...]:
    """Kinds of layers with an adapter. An expression may mean all of them."""
    targets = config.learner.target_modules
    return LINEAR_LAYERS if isinstance(targets, str) else targets


def kept_per_token(shape: Shape, config: RunConfig) -> int:
    """Bytes of one token that one layer keeps for the backward pass."""
    width = _WIDTH[config.base.dtype]
    norms = 2 * shape.hidden * _F32
    inside = width * (2 * shape.queries + 2 * shape.keys + 3 * shape.inner)
    if config.learner.adapter == "none":
        return norms + inside + _F32 * (4 * shape.hidden + shape.inner)
    targets = {target.rpartition(".")[2] for target in targets_of(config)}
    inputs = [shape.sides(target)[0] for target in targets]
    if width == _F32:  # layers that read the same tensor keep it once
        shared = (
            (shape.hidden, targets & {"q_proj", "k_proj", "v_proj"}),
            (shape.hidden, targets & {"gate_proj", "up_proj"}),
            (shape.inner, targets & {"down_proj"}),
        )
        inputs = [size for size, readers in shared if readers]
    # each LoRA layer keeps its own float32 copy of its input, and the r numbers it makes of it
    return norms + inside + _F32 * (sum(inputs) + config.learner.rank * len(targets))


def activations(shape: Shape, config: RunConfig, tokens: int) -> int:
    """Bytes that a forward pass over `tokens` keeps for the backward pass."""
    layer = kept_per_token(shape, config)
    if config.learner.gradient_checkpointing:
        between = _WIDTH[config.base.dtype] * shape.hidden * (shape.layers + 1)
        return tokens * (between + layer)
    return tokens * (layer * shape.layers + _F32 * shape.hidden)


def need_of(shape: Shape, config: RunConfig, *, longest: int, logits: int, shards: int = 1) -> Need:
    """What the learner of a configuration needs.

    Args:
        longest: tokens of the longest prompt and answer together: one sequence may be more than
            learner.microbatch_tokens.
        logits: logits that are in memory at once (`heads.head_rows` times the vocabulary).
        shards: devices that share the base's layers; each then has two layers whole at a time, and
            audits merge an adapter layer by layer.
    """
    width = _WIDTH[config.base.dtype]
    tokens = max(config.learner.microbatch_tokens, longest)
    # in the backward pass, gradients of the widest tensors of a layer beside what is kept
    passing = tokens * width * (3 * shape.inner + 2 * shape.hidden)
    trained = trained_weights(shape, config)
    whole = config.learner.adapter == "none"
    merged = shape.parameters if whole else _targeted(shape, targets_of(config))
    base = 0 if whole else width * shape.parameters
    if config.base.quantisation == "nf4":  # audits have the whole base on the CPU
        linear = _targeted(shape, LINEAR_LAYERS)
        audit = base + width * merged if config.learner.device == "cpu" else 0
        base = round(width * (shape.parameters - linear) + _NF4 * linear)
    else:
        audit = width * merged
    if shards > 1:
        layers = width * _targeted(shape, LINEAR_LAYERS)
        audit = layers // shape.layers
        base += layers // shards + 2 * audit - layers
    return Need(
        base=base,
        trained=_F32 * _STATES * trained,
        activations=activations(shape, config, tokens) + passing,
        logits=_F32 * _LOGIT_BUFFERS * min(logits, tokens * shape.vocabulary),
        audit=audit,
    )


def _targeted(shape: Shape, targets: Iterable[str]) -> int:
    """Weights of the base's layers of these kinds."""
    sides = map(shape.sides, targets)
    return shape.layers * sum(a * b for a, b in sides)


def check_fit(
    shape: Shape,
    config: RunConfig,
    *,
    memory: int,
    where: str,
    longest: int,
    logits: int,
    shards: int = 1,
) -> Need:
    """ConfigError with a way out unless the learner fits into `memory` bytes of `where`."""
    need = need_of(shape, config, longest=longest, logits=logits, shards=shards)
    if need.total <= memory:
        return need
    raise ConfigError(
        f"this run's learner needs about {_gb(need.total)} of the {_gb(memory)} of {where}: "
        f"base {_gb(need.base)}, what is trained with its optimiser {_gb(need.trained)}, "
        f"activations {_gb(need.activations)}, logits {_gb(need.logits)}, audits "
        f"{_gb(need.audit)}.",
        fix=_way_out(shape, config, memory=memory, longest=longest, logits=logits, shards=shards),
    )


def _way_out(
    shape: Shape, config: RunConfig, *, memory: int, longest: int, logits: int, shards: int
) -> str:
    """The least change of run.toml after which it fits."""
    for settings in _changes(config, longest):
        changed = config.model_copy(
            update={"learner": config.learner.model_copy(update=dict(settings))}
        )
        if need_of(shape, changed, longest=longest, logits=logits, shards=shards).total <= memory:
            return f"Set {' and '.join(f'learner.{k} = {json.dumps(v)}' for k, v in settings)}."
    return "Choose a smaller base.path, shorter answers, or a device with more memory."


def _changes(config: RunConfig, longest: int) -> Iterator[list[tuple[str, Any]]]:
    learner = config.learner
    ways: list[Mapping[str, Any]] = [{}]
    if not learner.gradient_checkpointing:
        ways.append({"gradient_checkpointing": True})
    if learner.adapter == "none":
        ways += [{**way, "adapter": "lora"} for way in ways]
    for way in ways:
        if way:
            yield [*way.items()]
        tokens = learner.microbatch_tokens
        while tokens > longest:
            tokens = max(longest, tokens // 2)
            yield [*way.items(), ("microbatch_tokens", tokens)]


def _gb(size: int) -> str:
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:.0f} GB"
