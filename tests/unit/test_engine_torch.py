"""The torch engine: what it samples is what a plain forward pass derives; versions do not drift."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_models import (
    CONTEXT,
    VOCAB,
    check_completion,
    configs,
    make_adapter,
    make_base,
    reference,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from echo_node.engines.base import Job
from echo_node.engines.draw import Sampler, Stream, Way
from echo_node.engines.driver import Driver
from echo_node.engines.lean import suits
from echo_node.engines.torch import TorchEngine
from echo_p2p.canary import CANARY_FILE, Canary, CanarySequence, write_canary
from echo_p2p.errors import EngineError
from echo_p2p.sampling import keys_to_torch, row_keys, sample
from echo_p2p.wire import Sampling

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(base, folder / str(seed), seed) for seed in (1, 2)]


@pytest.fixture
def engine(base: Path, adapters: list[Path]) -> Driver:
    engine = Driver(TorchEngine(max_sequences=64, device="cpu"))
    engine.load(base, "float32")
    engine.activate(1, adapters[0])
    return engine


def jobs(
    count: int, *, temperature: float = 1.0, limit: int = 24, stop: tuple[int, ...] = (2, 7)
) -> list[Job]:
    """Groups of four answers to prompts of mixed lengths."""
    chance = random.Random(count)
    sampling = Sampling(temperature=temperature, max_new_tokens=limit, stop=stop)
    prompts = [
        [chance.randrange(VOCAB) for _ in range(chance.randint(1, 20))] for _ in range(count)
    ]
    return [
        Job(prompts[i // 4], seed=chance.getrandbits(63) if i % 4 == 0 else i // 4, index=i % 4,
            sampling=sampling)
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("architecture", sorted(configs()))
def test_answers_are_what_a_plain_forward_pass_derives(architecture: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", architecture)
    adapter = make_adapter(base, tmp_path / "adapter", 1)
    engine = Driver(TorchEngine(max_sequences=64, device="cpu"))
    info = engine.load(base, "float32")
    assert (info.name, info.dtype, info.vocab_size) == ("torch", "float32", VOCAB)
    engine.activate(1, adapter)
    policy = reference(base, adapter)
    work = jobs(40)
    answers = engine.generate(work)
    for job, answer in zip(work, answers, strict=True):
        check_completion(policy, job, answer)
    lengths = {len(answer.tokens) for answer in answers}
    assert len(lengths) > 5  # rows did leave the batch at different times
    assert {answer.finish for answer in answers} == {"stop", "length"}


def test_which_models_the_lean_pass_is_for() -> None:
    odd = {"granite"}
    for architecture, config in configs().items():
        assert suits(AutoModelForCausalLM.from_config(config)) == (architecture not in odd)
    gelu = AutoModelForCausalLM.from_config(configs()["llama"])
    gelu.config.hidden_act = "gelu"
    assert not suits(gelu)


def test_temperatures_limits_and_stops_of_each_job_are_its_own(
    engine: Driver, base: Path, adapters: list[Path]
) -> None:
    work = [
        *jobs(6, temperature=0.7, limit=3),
        *jobs(5, temperature=1.5, limit=30, stop=()),
        *jobs(4, temperature=0.7, limit=1, stop=(5, 6, 8, 9)),
    ]
    random.Random(3).shuffle(work)
    policy = reference(base, adapters[0])
    for job, answer in zip(work, engine.generate(work), strict=True):
        check_completion(policy, job, answer)


def test_a_batch_larger_than_fits_is_split(base: Path, adapters: list[Path]) -> None:
    small, large = (Driver(TorchEngine(max_sequences=n, device="cpu")) for n in (3, 64))
    for engine in (small, large):
        engine.load(base, "float32")
        engine.activate(1, adapters[0])
    work = jobs(10)
    tokens = [[answer.tokens for answer in engine.generate(work)] for engine in (small, large)]
    assert tokens[0] == tokens[1]


def test_the_context_is_never_exceeded(engine: Driver, base: Path, adapters: list[Path]) -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=1000, stop=())
    work = [Job([5] * length, 1, 0, sampling) for length in (CONTEXT - 1, CONTEXT - 5, 3)]
    answers = engine.generate(work)
    assert [len(answer.tokens) for answer in answers] == [1, 5, CONTEXT - 3]
    for job, answer in zip(work, answers, strict=True):
        check_completion(reference(base, adapters[0]), job, answer)
    with pytest.raises(EngineError, match="leaves no room"):
        engine.generate([Job([5] * CONTEXT, 1, 0, sampling)])


def test_a_job_of_a_version_that_has_gone_is_refused(engine: Driver, adapters: list[Path]) -> None:
    (job,) = jobs(1)
    with pytest.raises(EngineError, match="version 2 is not here"):
        engine.submit(1, job, 2)
    engine.activate(2, adapters[1])
    engine.release(1)
    with pytest.raises(EngineError, match="version 1 is not here"):
        engine.submit(1, job, 1)
    assert engine.running == 0


def test_versions_do_not_drift(engine: Driver, adapters: list[Path]) -> None:
    work = jobs(8)
    first = engine.generate(work)
    for _ in range(5):
        engine.activate(2, adapters[1])
        other = engine.generate(work)
        engine.activate(3, adapters[0])
    assert other != first
    assert engine.generate(work) == first  # log-probabilities too, to the last bit


def test_bfloat16(base: Path, adapters: list[Path]) -> None:
    engine = Driver(TorchEngine(max_sequences=64, device="cpu"))
    assert engine.load(base, "bfloat16").dtype == "bfloat16"
    engine.activate(1, adapters[0])
    work = jobs(8)
    policy = reference(base, adapters[0])
    differences = []
    for job, answer in zip(work, engine.generate(work), strict=True):
        tokens = torch.tensor([job.prompt + answer.tokens])
        logits = policy(input_ids=tokens).logits[0, len(job.prompt) - 1 : -1].float()
        exact = logits.log_softmax(-1).gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
        differences.append((exact - torch.tensor(answer.logprobs)).abs().mean().item())
    assert sum(differences) / len(differences) < 0.1


# --- what is refused ----------------------------------------------------------------------------


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _edit_tensors(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


def _poisoned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    next(iter(tensors.values()))[0, 0] = float("nan")
    return tensors


def _overflowing(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: torch.full_like(tensor, 3e38) for key, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "cannot read"),
        (lambda f: (f / "adapter_config.json").write_text("["), "cannot read"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "cannot read the adapter"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 99), "cannot read the ad"),
        (lambda f: _edit_config(f, use_dora=True), "use_dora = True is not supported"),
        (lambda f: _edit_config(f, surprise=1), "'surprise' is not a field"),
        (lambda f: _edit_config(f, auto_mapping={"x": "y"}), "auto_mapping"),
        (lambda f: _edit_config(f, peft_type="IA3"), "peft_type"),
        (lambda f: _edit_config(f, target_modules="all-linear"), "not a list of names"),
        (lambda f: _edit_config(f, r=True), "not a rank"),
        (lambda f: _edit_config(f, lora_alpha="8"), "wrong type"),
        (lambda f: _edit_config(f, r=8), "another shape"),
        (lambda f: _edit_tensors(f, _poisoned), "non-finite number"),
        (lambda f: _edit_tensors(f, _overflowing), "version 2 computes non-finite"),
        (lambda f: _edit_tensors(f, lambda t: {**t, "x": torch.ones(1)}), "takes missing"),
        (lambda f: _edit_tensors(f, lambda t: dict(list(t.items())[1:])), "is missing"),
        (
            lambda f: _edit_tensors(f, lambda t: {k: v.T.contiguous() for k, v in t.items()}),
            "where the base model takes",
        ),
    ],
)
def test_a_bad_adapter_leaves_the_last_version_active(
    engine: Driver,
    base: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    complaint: str,
) -> None:
    work = jobs(4)
    before = engine.generate(work)
    bad = make_adapter(base, tmp_path / "bad", 9)
    spoil(bad)
    with pytest.raises(EngineError, match=complaint):
        engine.activate(2, bad)
    assert engine.generate(work) == before


def _canary_of(base: Path, adapter: Path, *, tolerance: float = 1e-3) -> Canary:
    """What this adapter says to two sequences, as PEFT computes it, of their last three tokens."""
    policy = reference(base, adapter)
    said = []
    for tokens in ([5, 9, 12, 40, 3, 8], [7, 7, 1, 30]):
        with torch.no_grad():
            logprobs = policy(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        found = logprobs.gather(-1, torch.tensor(tokens)[1:, None])[:, 0].tolist()
        said.append(CanarySequence(tokens, found[-3:]))
    return Canary(said, tolerance)


def test_a_version_that_says_what_the_hub_says_is_used_while_others_run(
    engine: Driver, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    version = shutil.copytree(adapters[1], tmp_path / "version")
    write_canary(version, _canary_of(base, version))
    work = jobs(8)
    alone = engine.generate(work)
    for number, job in enumerate(work):
        engine.submit(number, job)
    done = engine.step()
    engine.activate(2, version)
    (new,) = jobs(1)
    engine.submit(100, new)
    while engine.running:
        done += engine.step()
    assert [one.number for one in done][-1] == 100  # the older version's go first
    by_number = {one.number: one for one in done}
    assert [by_number[i].completion.tokens for i in range(8)] == [one.tokens for one in alone]
    assert [by_number[i].version for i in range(8)] == [1] * 8
    assert by_number[100].version == 2
    check_completion(reference(base, version), new, by_number[100].completion)


def test_a_version_that_says_something_else_here_than_at_the_hub_is_refused(
    engine: Driver, base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    work = jobs(4)
    before = engine.generate(work)
    drifted = shutil.copytree(adapters[1], tmp_path / "version")
    write_canary(drifted, _canary_of(base, adapters[0]))  # of other weights
    with pytest.raises(EngineError, match="other log-probabilities here than at the hub"):
        engine.activate(2, drifted)
    assert engine.generate(work) == before
    assert engine.active == 1
    (drifted / CANARY_FILE).write_text("{}")
    with pytest.raises(EngineError, match="version 2 is not used"):
        engine.activate(2, drifted)
    write_canary(drifted, _canary_of(base, drifted))
    engine.activate(2, drifted)


def test_a_bad_first_adapter_leaves_none_active(base: Path, tmp_path: Path) -> None:
    engine = Driver(TorchEngine(max_sequences=4, device="cpu"))
    with pytest.raises(EngineError, match="no base model"):
        engine.activate(1, tmp_path)
    engine.load(base, "float32")
    bad, good = (make_adapter(base, tmp_path / name, 9) for name in ("bad", "good"))
    _edit_tensors(bad, _overflowing)
    with pytest.raises(EngineError, match="non-finite logits"):
        engine.activate(1, bad)
    with pytest.raises(EngineError, match="no policy version"):
        engine.generate(jobs(1))
    engine.activate(1, good)
    check_completion(reference(base, good), jobs(1)[0], engine.generate(jobs(1))[0])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"model_type": "no-such-thing"}, "cannot load"),
        ({"num_hidden_layers": "two"}, "cannot load"),
    ],
)
def test_a_base_with_code_or_nonsense_is_refused(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    base = make_base(tmp_path)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(EngineError, match=complaint):
        Driver(TorchEngine(max_sequences=4, device="cpu")).load(base, "float32")


def test_a_base_without_safetensors_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(EngineError, match="no safetensors weights"):
        Driver(TorchEngine(max_sequences=4, device="cpu")).load(base, "float32")


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1]])
def test_a_prompt_outside_the_vocabulary_is_refused(engine: Driver, prompt: list[int]) -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=4, stop=())
    with pytest.raises(EngineError, match="outside the vocabulary"):
        engine.generate([Job(prompt, 1, 0, sampling)])


@pytest.mark.parametrize("vocab_size", [50, 5000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (7, 0.8)])
def test_the_sampler_draws_what_the_definition_says(
    vocab_size: int, top_k: int, top_p: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    chance = random.Random(0)
    way, other = Way(0.9, top_k, top_p), Way(1.3, 0, 1.0)
    rows = [(Stream(seed, index, 0), way) for seed in (1, 2**63 - 1) for index in range(5)]
    sampler = Sampler(vocab_size=vocab_size, device="cpu")
    sampler.replace(range(len(rows)), [stream for stream, _ in rows], [way for _, way in rows])
    for step in range(150):
        if step in (3, 70, 71):  # some leave
            kept = chance.sample(range(len(rows)), len(rows) - 2)
            rows = [rows[i] for i in kept]
            sampler.select(kept)
        if step in (5, 30, 72):  # others take a row, and one comes at the end
            places = [1, len(rows)]
            streams = [Stream(chance.getrandbits(63), 2, step), Stream(7, 1, 10 * step)]
            rows[1:2] = [(streams[0], other)]
            rows.append((streams[1], way))
            sampler.replace(places, streams, [other, way])
        logits = torch.randn(len(rows), vocab_size, generator=generator)
        drawn = sampler.draw(logits)
        for place, (stream, how) in enumerate(rows):
            keys = keys_to_torch(row_keys([stream]))
            assert drawn[place] == sample(logits[place : place + 1], keys, *how)
        rows = [(one._replace(position=one.position + 1), how) for one, how in rows]
