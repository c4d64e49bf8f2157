"""Fit before start, over shapes and machines that need not exist."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.cards import shares
from echo_node.fit import (
    HABITS,
    Misfit,
    Plan,
    Software,
    Wishes,
    head_room,
    least_need,
    need_of,
    plan,
)
from echo_node.hardware.base import GIB, Accelerator, Cpu, Machine
from echo_node.planner import resources_of
from echo_node.presets import PRESETS, Preset, find_preset
from echo_node.shapes import Shape, read_shape, shape_of
from echo_node.software import torch_devices
from echo_p2p.errors import ConfigError

ALL = Software(torch=frozenset({"cpu", "cuda"}), vllm=True)
CUDA_TORCH = replace(ALL, vllm=False)
MAC = Software(torch=frozenset({"cpu", "mps"}), mlx=True)


def machine(*cards: Accelerator, ram_gib: float = 32) -> Machine:
    ram = int(ram_gib * GIB)
    return Machine(
        system="Linux",
        architecture="x86_64",
        cpu=Cpu(name="cpu", cores=8),
        ram=ram,
        ram_free=ram - GIB,
        accelerators=cards,
    )


def card(gib: float, capability: str = "8.9", kind: str = "cuda") -> Accelerator:
    memory = int(gib * GIB)
    return Accelerator(
        kind=kind,  # type: ignore[arg-type]
        name=f"a {gib:g} GB card",
        memory=memory,
        free=memory - GIB // 4,
        capability=capability,
        unified=kind == "metal",
    )


def shape(name: str) -> Shape:
    preset = find_preset(name)
    assert preset is not None
    return preset.shape


def planned(name: str, where: Machine, software: Software = ALL, **wishes: object) -> Plan:
    made = plan(shape(name), Wishes(context=1024, **wishes), where, software)  # type: ignore[arg-type]
    assert isinstance(made, Plan), made
    return made


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_parameters_are_counted_as_published(preset: Preset) -> None:
    assert preset.shape.parameters == preset.parameters


def test_presets_are_found_by_whatever_name_people_use() -> None:
    for name in ("Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"):
        found = find_preset(name)
        assert found is not None
        assert found.name == "Qwen2.5-7B"
    assert find_preset("Qwen2.5-70000B") is None


def test_the_engine_follows_the_hardware() -> None:
    assert planned("Qwen2.5-0.5B", machine(card(24))).engine == "vllm"
    assert planned("Qwen2.5-0.5B", machine(card(24)), CUDA_TORCH).engine == "torch"
    assert planned("Qwen2.5-0.5B", machine(card(12, "", "metal")), MAC).engine == "mlx"
    assert planned("Qwen2.5-0.5B", machine(card(24)), ALL, engine="torch").device == "cuda:0"
    assert planned("Qwen2.5-0.5B", machine()).device == "cpu"
    rocm = replace(CUDA_TORCH, torch=frozenset({"cpu", "rocm"}))
    assert planned("Qwen2.5-0.5B", machine(card(24, "gfx1100", "rocm")), rocm).device == "cuda:0"


def test_equal_cards_are_used_together_by_vllm_and_only_equal_ones() -> None:
    one = planned("Qwen2.5-7B", machine(card(24)))
    four = planned("Qwen2.5-7B", machine(card(12), card(24), card(24), card(24), card(24)))
    assert (four.device, four.cards) == ("cuda:1,2,3,4", 4)  # 28 heads, 4 of them of keys
    assert four.need.weights < one.need.weights / 2
    assert four.max_sequences >= one.max_sequences
    assert "4 cards of a 24 GB card" in four.sentence
    assert resources_of(four).tensor_parallel == 4
    three = planned("Qwen2.5-7B", machine(card(24), card(24), card(24)))
    assert (three.device, three.cards) == ("cuda:0,1", 2)
    assert planned("Qwen2.5-7B", machine(card(24), card(16))).cards == 1
    assert (
        planned("Qwen2.5-7B", machine(card(24), card(24)), CUDA_TORCH, dtype="bfloat16").cards == 1
    )
    limited = planned("Qwen2.5-1.5B", machine(card(24), card(24)), gpu=20 * GIB)
    assert (limited.cards, limited.memory) == (2, 10 * GIB)
    # what one card cannot hold, several can
    assert isinstance(
        plan(shape("Qwen2.5-7B"), Wishes(context=1024), machine(card(16), ram_gib=8), ALL), Misfit
    )
    assert planned("Qwen2.5-7B", machine(card(16), card(16), ram_gib=8)).cards == 2


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_cards_divide_heads_as_vllm_wants(group: int, kv_heads: int, cards: int) -> None:
    count = shares(group * kv_heads, kv_heads, cards)
    assert 1 <= count <= cards
    assert (group * kv_heads) % count == 0
    assert kv_heads % count == 0 or count % kv_heads == 0


def test_mlx_is_not_planned_for_what_it_would_compute_wrongly() -> None:
    config = {**PRESETS[0].config, "model_type": "gemma2"}
    odd = shape_of(config, source="x")
    mac = machine(card(24, "", "metal"))
    made = plan(odd, Wishes(context=512), mac, MAC)
    assert isinstance(made, Plan)
    assert (made.engine, made.device) == ("torch", "mps")
    refused = plan(odd, Wishes(context=512, engine="mlx"), mac, MAC)
    assert isinstance(refused, Misfit)
    assert "gemma2" in refused.sentence


def test_an_old_card_gets_no_bfloat16_and_a_very_old_one_no_vllm() -> None:
    turing = planned("Qwen2.5-0.5B", machine(card(8, "7.5")))
    assert (turing.engine, turing.dtype) == ("vllm", "float32")
    assert planned("Qwen2.5-0.5B", machine(card(8, "6.1"))).engine == "torch"
    assert planned("Qwen2.5-0.5B", machine(card(24, "7.5")), dtype="bfloat16").engine == "torch"


def test_the_card_that_the_model_fits_is_chosen() -> None:
    made = planned("Qwen2.5-7B", machine(card(12), card(24), card(8)))
    assert (made.device, made.place) == ("cuda:1", "a 24 GB card")


def test_a_model_too_large_for_the_card_goes_to_the_cpu_and_says_so() -> None:
    made = planned("Qwen2.5-1.5B", machine(card(4)))
    assert made.device == "cpu"
    assert "torch on the CPU" in made.sentence


def test_a_misfit_says_which_card_would_do() -> None:
    made = plan(shape("Qwen2.5-7B"), Wishes(context=1024), machine(card(12)), ALL)
    assert isinstance(made, Misfit)
    assert made.needs > made.memory
    assert "A card with 20 GB would do." in made.fix
    huge = shape_of(
        {**PRESETS[0].config, "num_hidden_layers": 80, "intermediate_size": 1 << 20}, source="x"
    )
    made = plan(huge, Wishes(context=1024), machine(card(12)), ALL)
    assert isinstance(made, Misfit)
    assert "No single card" in made.fix


def test_an_engine_that_is_not_there_is_said() -> None:
    made = plan(shape("SmolLM2-135M"), Wishes(context=64, engine="mlx"), machine(), ALL)
    assert isinstance(made, Misfit)
    assert "mlx cannot compute on this machine" in made.sentence


def test_limits_are_kept_and_the_batch_follows() -> None:
    free = planned("Qwen2.5-0.5B", machine(card(24)))
    bounded = planned("Qwen2.5-0.5B", machine(card(24)), gpu=6 * GIB)
    assert bounded.memory == 6 * GIB
    assert bounded.need.total <= 6 * GIB
    assert 1 <= bounded.max_sequences < free.max_sequences
    assert planned("Qwen2.5-0.5B", machine(card(24)), max_sequences=3).max_sequences == 3


@given(
    st.sampled_from(PRESETS),
    st.integers(16, 8192),
    st.integers(1, 64),
    st.floats(2, 200),
    st.sampled_from(["float32", "bfloat16", None]),
    st.one_of(st.none(), st.integers(1, 300)),
    st.lists(st.tuples(st.floats(2, 141), st.sampled_from(["6.1", "7.5", "8.9", ""])), max_size=3),
)
def test_a_plan_never_exceeds_what_it_may_have(
    preset: Preset,
    context: int,
    group: int,
    ram: float,
    dtype: object,
    most: int | None,
    cards: list[tuple[float, str]],
) -> None:
    where = machine(*(card(gib, capability) for gib, capability in cards), ram_gib=ram)
    wishes = Wishes(
        context=context,
        group_size=group,
        dtype=dtype,  # type: ignore[arg-type]
        max_sequences=most,
    )
    made = plan(preset.shape, wishes, where, ALL)
    if isinstance(made, Misfit):
        assert made.needs > made.memory
        return
    assert made.need.total <= made.memory
    assert 1 <= made.max_sequences <= (most or 256)
    assert dtype is None or made.dtype == dtype
    if most is None and made.max_sequences > group:
        assert made.max_sequences % group == 0
    if made.device == "cpu":
        assert made.memory <= where.ram - head_room("cpu", where.ram)
    # one more would not fit, unless more was not asked for
    habits = HABITS[made.engine, "cpu" if made.device == "cpu" else "cuda"]
    if made.max_sequences < min(most or habits.most, made.max_sequences + group):
        more = need_of(
            preset.shape,
            habits,
            dtype=made.dtype,
            context=made.context,
            sequences=made.max_sequences + (group if most is None else 1),
        )
        assert more.total > made.memory or made.max_sequences + group > habits.most


def test_a_download_in_vain_is_seen_before_it_begins() -> None:
    wishes = Wishes(context=512)
    assert least_need(1 * GIB, machine(), ALL, wishes) == ""
    assert "weights alone are 100 GiB" in least_need(100 * GIB, machine(card(24)), ALL, wishes)
    assert least_need(19 * GIB, machine(card(24), ram_gib=8), ALL, wishes) == ""


def test_shapes_are_read_from_a_folder_or_refused(tmp_path: Path) -> None:
    config = PRESETS[3].config
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path) == PRESETS[3].shape == read_shape(tmp_path / "config.json")
    wrapped = {"text_config": config, "vision_config": {}}
    assert shape_of(wrapped, source="x") == PRESETS[3].shape
    for spoilt, complaint in (
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        (json.dumps({**config, "hidden_size": -1}), "hidden_size = -1 is no size"),
        (json.dumps({**config, "vocab_size": True}), "vocab_size = True"),
        (json.dumps({"model_type": "mamba"}), "does not say hidden_size"),
    ):
        (tmp_path / "config.json").write_text(spoilt)
        with pytest.raises(ConfigError, match=complaint):
            read_shape(tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_shape(tmp_path / "none")


def test_experts_all_count() -> None:
    dense = shape_of(PRESETS[0].config, source="x")
    mixed = shape_of(
        {**PRESETS[0].config, "num_experts": 4, "moe_intermediate_size": 1536}, source="x"
    )
    layer = 3 * 576 * 1536
    assert mixed.parameters - dense.parameters == 30 * (3 * layer + 4 * 576)


@pytest.mark.parametrize(
    ("version", "system", "devices"),
    [
        ("2.13.0+cpu", "linux", {"cpu"}),
        ("2.13.0", "linux", {"cpu", "cuda"}),
        ("2.13.0+cu130", "win32", {"cpu", "cuda"}),
        ("2.13.0", "win32", {"cpu"}),
        ("2.13.0+rocm7.1", "linux", {"cpu", "rocm"}),
        ("2.13.0", "darwin", {"cpu", "mps"}),
        ("", "linux", set()),
    ],
)
def test_a_build_of_torch_says_what_it_computes_on(
    version: str, system: str, devices: set[str]
) -> None:
    assert torch_devices(version, system) == devices
