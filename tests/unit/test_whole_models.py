"""`adapter = "none"`: every weight is trained, published, sampled from and audited."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import make_adapter
from learner_support import load_policy, make_config, random_prompts, reward
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from echo_hub.audit.derive import Auditor
from echo_hub.learner.messages import Audit, Audited, AuditRollout, TrainGroup, TrainRollout
from echo_hub.learner.trainer import Trainer
from echo_hub.models import addmix3_path
from echo_hub.models.make_addmix3 import MAX_ANSWER_TOKENS, VOCABULARY, encode
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.artifact.delta import decode
from echo_p2p.artifact.delta import encode as encode_delta
from echo_p2p.artifact.segments import plan
from echo_p2p.canary import read_canary
from echo_p2p.errors import EngineError
from echo_p2p.wire import FileEntry, Sampling

GROUP = 8
SAMPLING = Sampling(temperature=1.0, max_new_tokens=MAX_ANSWER_TOKENS, stop=(VOCABULARY["<eos>"],))


CANARY = [encode("12+7="), encode("430+57=")]


class Run:
    """A learner and one node's engine, without the network between them."""

    def __init__(self, folder: Path, **learner: Any) -> None:
        self.config = config = make_config(
            learner={"adapter": "none", "learning_rate": 1e-4, "staleness": 0, **learner}
        )
        self.folder = folder
        self.trainer = Trainer(load_policy(config), config, canary=CANARY)
        self.auditor = Auditor(self.trainer.policy)
        self.engine = Driver(TorchEngine(max_sequences=512, device="cpu"))
        self.engine.load(addmix3_path(), "float32")
        self.trainer.save(self.adapter.parent)
        self.engine.activate(0, self.adapter)

    @property
    def adapter(self) -> Path:
        return self.folder / f"v{self.trainer.version}" / "adapter"

    def sample(self, chance: random.Random, count: int) -> list[tuple[TrainGroup, int]]:
        """Groups of the version the engine has, each with its seed."""
        prompts = [encode(prompt) for prompt in random_prompts(chance, count)]
        seeds = [chance.getrandbits(62) for _ in prompts]
        jobs = [
            Job(prompt, seed, index, SAMPLING)
            for prompt, seed in zip(prompts, seeds, strict=True)
            for index in range(GROUP)
        ]
        answers = iter(self.engine.generate(jobs))
        groups = []
        for prompt in prompts:
            rollouts = [next(answers) for _ in range(GROUP)]
            scored = [
                TrainRollout(r.tokens, r.logprobs, reward(prompt, r.tokens)) for r in rollouts
            ]
            groups.append(TrainGroup(self.trainer.version, prompt, scored))
        return list(zip(groups, seeds, strict=True))

    def update(self, groups: list[TrainGroup]) -> dict[str, float]:
        out = self.folder / f"v{self.trainer.version + 1}"
        metrics = self.trainer.train(groups, out)
        self.engine.activate(self.trainer.version, self.adapter)
        return metrics

    def audit(self, group: TrainGroup, seed: int, adapter: Path) -> Audited:
        return self.auditor.derive(
            Audit(
                version=group.version,
                adapter=str(adapter),
                prompt=group.prompt,
                seed=seed,
                temperature=1.0,
                rollouts=[AuditRollout(r.tokens, r.logprobs) for r in group.rollouts],
            )
        )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run at version 0, which the tests leave as it is."""
    return Run(tmp_path_factory.mktemp("run"))


def test_two_updates_are_sampled_from_audited_and_sent(tmp_path: Path):
    run = Run(tmp_path)
    chance = random.Random(2)
    folders = [run.adapter]
    work = []
    for _ in range(2):
        sampled = run.sample(chance, 8)
        work.append((sampled[0], run.adapter))
        metrics = run.update([group for group, _ in sampled])
        assert metrics["mismatch_max"] < 1e-3
        folders.append(run.adapter)
    assert all(read_canary(folder) for folder in folders)  # which the engine checked
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 3
    for ((group, seed), adapter), other in zip(work, folders[1:], strict=True):
        honest, false = run.audit(group, seed, adapter), run.audit(group, seed, other)
        assert (honest.mismatches, honest.max_logprob_difference < 1e-3) == (0, True)
        assert false.max_logprob_difference > 1e-3  # said to be of another version
    for folder in folders:
        names = {file.name for file in folder.iterdir()} - {"generation_config.json"}
        assert names == {"canary.json", "config.json", "model.safetensors"}
        assert str(addmix3_path()) not in (folder / "config.json").read_text()
    old, new = ((folder / "model.safetensors").read_bytes() for folder in folders[1:])
    assert _delta_size(old, new) < 0.9 * len(new)


def _delta_size(old: bytes, new: bytes) -> int:
    """Size of the delta between two versions' files, which gives back the second."""

    def at(data: bytes) -> Any:
        return lambda offset, length: data[offset : offset + length]

    entry = [FileEntry(name="model.safetensors", size=len(new))]
    delta = b"".join(encode_delta(plan(entry, at(new), entry, at(old)), at(new), at(old)))
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        place += count
        return delta[place - count : place]

    again = decode(read, at(old), parent_bytes=len(old), target_bytes=len(new))
    assert b"".join(again) == new
    return len(delta)


def test_a_version_is_a_model_that_transformers_loads(tmp_path: Path):
    run = Run(tmp_path)
    run.update([group for group, _ in run.sample(random.Random(3), 4)])
    model = AutoModelForCausalLM.from_pretrained(run.adapter, local_files_only=True)
    assert model.dtype == torch.float32
    prompt, answer = encode("123+456="), encode("3+6+0=9")
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]
    found = run.trainer.policy.logprobs([(prompt, answer)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    again = Trainer(load_policy(run.config), run.config)
    again.resume(run.adapter.parent)
    torch.testing.assert_close(again.policy.logprobs([(prompt, answer)]), found, atol=0, rtol=0)


def _spoil(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight is missing"),
        (lambda t: t.update({"x": torch.ones(2)}), "takes missing"),
        (lambda t: t.update({"model.norm.weight": torch.ones(2)}), "is 2, where"),
        (lambda t: t["model.norm.weight"].fill_(float("nan")), "non-finite number"),
        (lambda t: t["model.norm.weight"].fill_(3e38), "non-finite logits"),
        (lambda t: t.update({"model.norm.weight": torch.ones(128, dtype=torch.int32)}), "non-fin"),
    ],
)
def test_a_false_version_leaves_the_last_one(
    first: Run, tmp_path: Path, change: Any, complaint: str
):
    job = Job(encode("123+456="), 5, 0, SAMPLING)
    before = first.engine.generate([job])
    shutil.copytree(first.adapter, tmp_path / "false")
    _spoil(tmp_path / "false", change)
    with pytest.raises(EngineError, match=complaint):
        first.engine.activate(1, tmp_path / "false")
    assert first.engine.generate([job]) == before


def test_the_kind_of_version_does_not_change_within_a_run(first: Run, tmp_path: Path):
    adapter = make_adapter(addmix3_path(), tmp_path / "adapter", 1)
    with pytest.raises(EngineError, match="an adapter came where"):
        first.engine.activate(1, adapter)
    engine = Driver(TorchEngine(max_sequences=4, device="cpu"))
    engine.load(addmix3_path(), "float32")
    engine.activate(0, adapter)
    with pytest.raises(EngineError, match="of another shape"):
        engine.activate(1, first.adapter)


@pytest.mark.slow
def test_ten_updates_of_all_weights_raise_the_reward(tmp_path: Path):
    run = Run(tmp_path)
    chance = random.Random(1)
    rewards = [
        run.update([group for group, _ in run.sample(chance, 16)])["reward_mean"] for _ in range(10)
    ]
    assert 0.25 < rewards[0] < 0.5
    assert sum(rewards[-3:]) / 3 > 0.65, rewards
