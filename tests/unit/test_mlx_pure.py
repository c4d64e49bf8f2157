"""What the MLX engine decides without MLX: names and shapes of adapters, bases it takes, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.engines import choice
from echo_node.engines.adapter_config import scale_of
from echo_node.engines.mlx_adapter import to_mlx
from echo_node.engines.mlx_config import PROVEN, overrides
from echo_node.engines.mlx_limits import Pace, memory_plan, rest_s, rows_that_fit
from echo_p2p.errors import ConfigError, EngineError

GIB = 1 << 30
NAMES = st.from_regex(r"model\.layers\.[0-9]{1,2}\.[a-z_]{1,9}", fullmatch=True)
LAYER = "model.layers.3.self_attn.q_proj"


def pair(rank: int, inputs: int, outputs: int, name: str = LAYER) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(rank * inputs + outputs)
    return {
        f"base_model.model.{name}.lora_A.weight": chance.normal(size=(rank, inputs)),
        f"base_model.model.{name}.lora_B.weight": chance.normal(size=(outputs, rank)),
    }


@given(
    rank=st.integers(1, 8),
    inputs=st.integers(1, 12),
    outputs=st.integers(1, 12),
    alpha=st.floats(0.1, 64),
    rslora=st.booleans(),
    names=st.sets(NAMES, min_size=1, max_size=4),
)
def test_a_converted_adapter_adds_what_peft_adds(
    rank: int, inputs: int, outputs: int, alpha: float, rslora: bool, names: set[str]
) -> None:
    tensors = {k: v for name in names for k, v in pair(rank, inputs, outputs, name).items()}
    scale = scale_of({"r": rank, "lora_alpha": alpha, "use_rslora": rslora})
    assert scale == pytest.approx(alpha / (rank**0.5 if rslora else rank))
    layers = to_mlx(tensors, rank)
    assert layers.keys() == names
    x = np.random.default_rng(7).normal(size=(5, inputs))
    for name, layer in layers.items():
        a, b = (tensors[f"base_model.model.{name}.lora_{kind}.weight"] for kind in "AB")
        peft = scale * (b @ (a @ x.T)).T
        np.testing.assert_allclose(scale * (x @ layer["lora_a"]) @ layer["lora_b"], peft, 1e-9)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "no weights"),
        ({f"base_model.model.{LAYER}.lora_A.weight": np.zeros((4, 6))}, "has only lora_a"),
        ({**pair(4, 6, 8), "base_model.model.x.lora_magnitude_vector": np.zeros(6)}, "magnitude"),
        ({**pair(4, 6, 8), "x.lora_A.weight": np.zeros((4, 6))}, "not a LoRA weight"),
        (pair(3, 6, 8), "not of rank 4"),
        ({**pair(4, 6, 8), f"base_model.model.{LAYER}.lora_B.weight": np.zeros((4, 8))}, "4 x 8"),
        ({**pair(4, 6, 8), f"base_model.model.{LAYER}.lora_B.weight": np.zeros(8)}, "rank 4"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((4, 6))}, "embedding"),
    ],
)
def test_what_is_no_adapter_of_linear_layers_is_refused(
    tensors: dict[str, np.ndarray], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        to_mlx(tensors, 4)


def base(**fields: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
        **fields,
    }


def test_mlx_is_told_what_it_would_not_read() -> None:
    assert overrides(base()) == {"rope_theta": 777.0}
    assert overrides(base(rope_theta=5.0)) == {}
    assert overrides(base(rope_parameters=None)) == {}
    yarn = {"rope_type": "yarn", "rope_theta": 7.0, "factor": 4.0}
    assert overrides(base(rope_parameters=yarn)) == {"rope_theta": 7.0, "rope_scaling": yarn}
    old = {"type": "llama3", "factor": 8.0}
    assert overrides(base(model_type="llama", rope_parameters=None, rope_scaling=old)) == {
        "rope_scaling": old
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "gemma2"}, "architecture 'gemma2'"),
        ({"model_type": None}, "architecture None"),
        ({"model_type": "../evil"}, "architecture"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "qwen2 with the rotary embedding 'llama3'"),
        ({"rope_parameters": [1]}, "not described"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"sliding_window": 512}, "sliding attention"),
        ({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}, "slid"),
        ({"sliding_window": 512, "use_sliding_window": True}, "sliding attention"),
    ],
)
def test_a_base_that_mlx_may_compute_otherwise_is_refused(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        overrides(base(**fields))
    assert "torch" in caught.value.fix or "dictionary" in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": None},
        {"sliding_window": 4096},
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": 512, "layer_types": ["full_attention"] * 2},
        {"hidden_act": "swish"},
        *({"model_type": name} for name in PROVEN),
    ],
)
def test_a_base_without_surprises_is_taken(fields: dict[str, Any]) -> None:
    overrides(base(**fields))


@given(
    wanted=st.none() | st.integers(GIB, 512 * GIB),
    recommended=st.none() | st.integers(GIB, 256 * GIB),
    total=st.none() | st.integers(GIB, 512 * GIB),
)
def test_memory_limits_never_pass_what_was_asked_or_recommended(
    wanted: int | None, recommended: int | None, total: int | None
) -> None:
    plan = memory_plan(wanted, recommended=recommended, total=total)
    if plan is None:
        assert wanted is None
        assert recommended is None
        assert total is None
        return
    assert 0 < plan.cache < plan.limit
    assert wanted is None or plan.limit <= wanted
    assert recommended is None or plan.limit <= recommended
    assert (plan.wired is None) == (recommended is None)
    assert plan.wired is None or plan.wired <= plan.limit


def test_rows_fit_at_their_full_length() -> None:
    token = 1000
    assert rows_that_fit(8 * 256 * token * 8 // 7, 256, token) == 8
    assert rows_that_fit(8 * 256 * token * 8 // 7, 257, token) == 4
    assert rows_that_fit(0, 10, token) == 1  # slow, and no worse than not at all
    assert rows_that_fit(-5, 10, token) == 1


def test_the_rest_keeps_the_share_of_time_worked() -> None:
    assert rest_s(0.1, 0.5) == pytest.approx(0.1)
    assert rest_s(0.03, 0.75) == pytest.approx(0.01)
    assert rest_s(0.1, 1.0) == rest_s(0.1, 2.0) == rest_s(0.1, 0.0) == 0.0
    pace = Pace()
    rests = [pace.rest_s(1.2, 0.5), *(pace.rest_s(0.0, 0.5) for _ in range(3))]
    assert rests == pytest.approx([0.5, 0.5, 0.2, 0.0])


@pytest.mark.parametrize(
    ("system", "machine", "installed", "best"),
    [
        ("darwin", "arm64", True, True),
        ("darwin", "arm64", False, False),
        ("darwin", "x86_64", True, False),
        ("linux", "aarch64", True, False),
    ],
)
def test_mlx_is_best_on_apples_chips_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, installed: bool, best: bool
) -> None:
    monkeypatch.setattr(choice.sys, "platform", system)
    monkeypatch.setattr(choice.platform, "machine", lambda: machine)
    monkeypatch.setattr(choice, "find_spec", lambda _: object() if installed else None)
    assert choice.mlx_is_best() == best


def test_engines_are_named_or_addressed() -> None:
    for name in ("mlx", "http://10.0.0.7:8000", "https://models.example#base"):
        choice.check_name(name)
    with pytest.raises(ConfigError, match="no engine 'ftp"):
        choice.check_name("ftp://10.0.0.7")
