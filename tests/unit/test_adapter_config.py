"""The config of an adapter, read without PEFT: every field of the installed PEFT is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peft import LoraConfig

from echo_node.engines.adapter_config import (
    ADAPTER_CONFIG,
    NEUTRAL,
    SHAPING,
    WITHOUT_EFFECT,
    read_config,
    scale_of,
)
from echo_p2p.errors import EngineError


def config(folder: Path, **fields: object) -> Path:
    (folder / ADAPTER_CONFIG).write_text(json.dumps(fields), encoding="utf-8")
    return folder


def test_the_fields_and_their_neutral_values_are_those_of_peft() -> None:
    peft = {**LoraConfig(task_type="CAUSAL_LM").to_dict(), "peft_type": "LORA"}
    assert set(peft) == {*SHAPING, *WITHOUT_EFFECT, *NEUTRAL}
    for key, value in {**SHAPING, **NEUTRAL}.items():
        assert peft[key] == value, key


def test_what_peft_saves_is_read(tmp_path: Path) -> None:
    LoraConfig(
        r=16, lora_alpha=24, target_modules=["v_proj", "q_proj"], use_rslora=True,
        task_type="CAUSAL_LM", base_model_name_or_path="somewhere",
    ).save_pretrained(tmp_path)  # fmt: skip
    shape = read_config(tmp_path)
    assert shape == {
        "r": 16, "lora_alpha": 24, "target_modules": ["q_proj", "v_proj"], "use_rslora": True,
    }  # fmt: skip
    assert scale_of(shape) == 6.0
    assert scale_of({**shape, "use_rslora": False}) == 1.5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"new_magic": 1}, "not a field"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"r": 0}, "not a rank"),
        ({"r": True}, "not a rank"),
        ({"r": 4097}, "not a rank"),
        ({"lora_alpha": "8"}, "wrong type"),
        ({"use_rslora": 1}, "wrong type"),
        ({"target_modules": "all-linear"}, "not a list"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        read_config(config(tmp_path, **{"target_modules": ["q_proj"], **fields}))
