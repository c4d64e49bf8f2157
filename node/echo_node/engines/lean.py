"""The forward pass of the commonest kind of model, in fewer and larger operations.

Computes what transformers computes for the models named in `_MODELS`, up to rounding, from the
same weights: those of layers that read the same input lie one behind the other, and the model's own
parameters become views of them, so that whoever writes a parameter writes them. With a small model
or few rows the number of operations is what a step costs; at any size, heads that share keys and
values are asked as further queries, where copies of all keys and values are made otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import functional

from echo_node.engines.cache import SlotCache

_MODELS = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)

Pair = tuple[torch.Tensor, torch.Tensor | None]
"""Weight and bias of linear layers."""
Turn = tuple[torch.Tensor, torch.Tensor]
"""Cosines, and sines of which the first half is negated: [rows, new, 1, size]."""
Asked = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values: [rows, new, heads of each, size]."""


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; `kind` is which of the masks it takes."""

    kind: str
    before: torch.Tensor
    between: torch.Tensor
    ask: Pair
    out: Pair
    widen: Pair
    narrow: Pair
    norms: tuple[torch.Tensor, torch.Tensor] | None
    """Of each head's query and key, where there are such."""


def suits(model: Any) -> bool:
    """Whether `Lean` computes what this model does."""
    if type(model).__name__ not in _MODELS or model.config.hidden_act != "silu":
        return False
    linears = [
        getattr(part, name)
        for layer in model.model.layers
        for part, names in ((layer.self_attn, "qkvo"), (layer.mlp, ("gate", "up", "down")))
        for name in (f"{one}_proj" for one in names)
    ]
    return all(type(one) is torch.nn.Linear for one in linears)


class Lean:
    """The pass of one model that `suits`. It fuses the model's weights: once a model.

    Args:
        kinds: of each layer, which mask it takes.
    """

    def __init__(self, model: Any, kinds: Sequence[str]) -> None:
        inner, config = model.model, model.config
        self._heads: int = config.num_attention_heads
        self._shared: int = config.num_key_value_heads
        self._size: int = inner.layers[0].self_attn.head_dim
        self._epsilon: float = config.rms_norm_eps
        self._embedding = inner.embed_tokens.weight
        self._rotary = inner.rotary_emb
        self._last = inner.norm.weight
        self._head: Pair = (model.lm_head.weight, model.lm_head.bias)
        self._layers = [
            _layer(layer, kind) for layer, kind in zip(inner.layers, kinds, strict=True)
        ]

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: Mapping[str, torch.Tensor],
        cache: SlotCache,
        keep: int,
    ) -> torch.Tensor:
        """Raw logits of the last `keep` of `tokens` [rows, new]: [rows, keep, vocabulary].

        Args:
            masks: who sees whom, bool [rows, 1, new, columns], by kind of layer.
        """
        rows, new = tokens.shape
        hidden = functional.embedding(tokens, self._embedding)
        turn = self._turn(hidden, positions)
        seen = {kind: self._additive(mask, hidden.dtype) for kind, mask in masks.items()}
        hidden = hidden.view(rows * new, -1)
        for layer, held in zip(self._layers, cache.past.layers, strict=True):
            asked = self._asked(layer, hidden, turn, rows)
            found = self._attend(asked, held, seen[layer.kind])
            hidden = _added(hidden, found, layer.out)
            inner = self._normed(hidden, layer.between)
            gate, up = functional.linear(inner, *layer.widen).chunk(2, -1)
            hidden = _added(hidden, functional.silu(gate).mul_(up), layer.narrow)
        hidden = hidden.view(rows, new, -1)[:, new - keep :]
        return functional.linear(self._normed(hidden, self._last), *self._head)

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)

    def _turn(self, hidden: torch.Tensor, positions: torch.Tensor) -> Turn:
        cosines, sines = self._rotary(hidden, positions)
        half = self._size // 2
        signed = torch.cat([-sines[..., :half], sines[..., half:]], -1)
        return cosines[:, :, None], signed[:, :, None]

    def _additive(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What is added to scores, for the queries of heads that share keys one after another."""
        added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        added.masked_fill_(~mask, -torch.inf)
        new = mask.shape[2]
        return added if new == 1 else added.repeat(1, 1, self._heads // self._shared, 1)

    def _asked(self, layer: _Layer, hidden: torch.Tensor, turn: Turn, rows: int) -> Asked:
        heads, shared, size = self._heads, self._shared, self._size
        all_three = functional.linear(self._normed(hidden, layer.before), *layer.ask)
        all_three = all_three.view(rows, -1, heads + 2 * shared, size)
        turned, values = torch.split(all_three, [heads + shared, shared], 2)
        if layer.norms is not None:
            parts = zip(torch.split(turned, [heads, shared], 2), layer.norms, strict=True)
            turned = torch.cat([self._normed(part, weight) for part, weight in parts], 2)
        halves = turned.view(*turned.shape[:-1], 2, size // 2)
        swapped = halves.flip(-2).view(turned.shape)
        turned = torch.addcmul(turned * turn[0], swapped, turn[1])
        queries, keys = torch.split(turned, [heads, shared], 2)
        return queries, keys, values

    def _attend(self, asked: Asked, held: Any, mask: torch.Tensor) -> torch.Tensor:
        """What each token finds: [rows * new, heads * size]. `held` takes its keys and values."""
        queries, new_keys, new_values = asked
        rows, new, heads, size = queries.shape
        keys, values = held.update(new_keys.transpose(1, 2), new_values.transpose(1, 2))
        group = heads // self._shared
        grouped = queries.view(rows, new, self._shared, group, size).permute(0, 2, 3, 1, 4)
        found = functional.scaled_dot_product_attention(
            grouped.reshape(rows, self._shared, group * new, size), keys, values, attn_mask=mask
        )
        apart = found.view(rows, self._shared, group, new, size).permute(0, 3, 1, 2, 4)
        return apart.reshape(rows * new, heads * size)


def _added(hidden: torch.Tensor, found: torch.Tensor, linear: Pair) -> torch.Tensor:
    weight, bias = linear
    hidden = torch.addmm(hidden, found, weight.t())
    return hidden if bias is None else hidden.add_(bias)


def _layer(layer: Any, kind: str) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        norms = (attention.q_norm.weight, attention.k_norm.weight)
    return _Layer(
        kind=kind,
        before=layer.input_layernorm.weight,
        between=layer.post_attention_layernorm.weight,
        ask=_fused(attention.q_proj, attention.k_proj, attention.v_proj),
        out=(attention.o_proj.weight, attention.o_proj.bias),
        widen=_fused(mlp.gate_proj, mlp.up_proj),
        narrow=(mlp.down_proj.weight, mlp.down_proj.bias),
        norms=norms,
    )


def _fused(*linears: torch.nn.Linear) -> Pair:
    """Weights, and biases, one behind the other; the layers' own become views of them."""

    def joined(name: str) -> torch.Tensor | None:
        parts = [getattr(linear, name) for linear in linears]
        if parts[0] is None:
            return None
        whole = torch.cat([part.detach() for part in parts])
        for linear, view in zip(
            linears, torch.split(whole, [len(one) for one in parts]), strict=True
        ):
            setattr(linear, name, torch.nn.Parameter(view, requires_grad=False))
        return whole

    return cast("torch.Tensor", joined("weight")), joined("bias")
