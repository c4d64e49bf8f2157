"""The MLX engine: the tokens of a plain forward pass by transformers, versions side by side."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

import torch  # noqa: E402
import trio  # noqa: E402
from engine_models import (  # noqa: E402
    CONTEXT,
    VOCAB,
    check_completion,
    make_adapter,
    make_base,
    reference,
)
from safetensors.torch import load_file, save_file  # noqa: E402
from test_engine_turns import check as check_dialogue  # noqa: E402
from test_engine_turns import jobs as dialogues  # noqa: E402
from test_engine_turns import text as words  # noqa: E402, F401
from transformers import AutoModelForCausalLM  # noqa: E402

from echo_node.engines import mlx, mlx_batch  # noqa: E402
from echo_node.engines.base import Completion, Job  # noqa: E402
from echo_node.engines.driver import Driver  # noqa: E402
from echo_node.engines.mlx import MlxEngine  # noqa: E402
from echo_node.engines.prefixes import Prefixes  # noqa: E402
from echo_node.engines.remote import open_engine  # noqa: E402
from echo_node.engines.torch import TorchEngine  # noqa: E402
from echo_p2p.errors import EngineError, ProcessError  # noqa: E402
from echo_p2p.text import TurnText  # noqa: E402
from echo_p2p.wire import Sampling  # noqa: E402

pytestmark = pytest.mark.mlx
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(base, folder / str(seed), seed) for seed in (1, 2)]


def loaded(base: Path, max_sequences: int = 16, **arguments: Any) -> Driver:
    driver = Driver(MlxEngine(max_sequences=max_sequences, **arguments))
    driver.load(base, "float32")
    return driver


@pytest.fixture
def driver(base: Path, adapters: list[Path]) -> Driver:
    driver = loaded(base)
    driver.activate(1, adapters[0])
    return driver


def jobs(count: int, limit: int = 24, stop: tuple[int, ...] = (2, 7), **how: Any) -> list[Job]:
    """Groups of four answers to prompts of mixed lengths."""
    chance = random.Random(count)
    sampling = Sampling(**{"temperature": 1.0, "max_new_tokens": limit, "stop": stop, **how})
    groups = [
        ([chance.randrange(VOCAB) for _ in range(chance.randint(1, 20))], chance.getrandbits(63))
        for _ in range(-(-count // 4))
    ]
    return [Job(*groups[i // 4], index=i % 4, sampling=sampling) for i in range(count)]


def finish(driver: Driver) -> dict[int, tuple[int, Completion]]:
    answers = {}
    while driver.running:
        for done in driver.step():
            answers[done.number] = done.version, done.completion
    return answers


def test_answers_are_what_a_plain_forward_pass_derives(
    driver: Driver, base: Path, adapters: list[Path]
) -> None:
    policy = reference(base, adapters[0])
    work = [*jobs(40), *jobs(9, temperature=0.6), *jobs(3, limit=60, stop=()), *jobs(1)]
    answers = driver.generate(work)
    for job, answer in zip(work, answers, strict=True):
        check_completion(policy, job, answer)
    assert {answer.finish for answer in answers} == {"stop", "length"}
    assert driver.engine.sampled == sum(len(answer.tokens) for answer in answers)
    assert driver.engine.running == 0


def test_ways_of_sampling_mixed_in_one_batch_are_as_with_torch(
    driver: Driver, base: Path, adapters: list[Path]
) -> None:
    other = Driver(TorchEngine(max_sequences=16, device="cpu"))
    other.load(base, "float32")
    other.activate(1, adapters[0])
    work = [
        *jobs(8, top_k=5), *jobs(7, top_p=0.8, temperature=1.4), *jobs(6, top_k=9, top_p=0.5),
        *jobs(3), *[Job([3, 4], 5, 6, jobs(1)[0].sampling, start=start) for start in (7, 900)],
    ]  # fmt: skip
    random.Random(2).shuffle(work)
    for ours, theirs in zip(driver.generate(work), other.generate(work), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.finish == theirs.finish
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_what_is_answered_does_not_depend_on_how_jobs_are_batched(
    base: Path, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows or many, prompts read in pieces or at once, alone or beside rows that run."""
    work = jobs(24)
    found = []
    for most, piece, prompts in ((1, 2048, 16), (3, 5, 1), (24, 8, 4), (24, 2048, 16)):
        monkeypatch.setattr(mlx_batch, "PREFILL_TOKENS", piece)
        monkeypatch.setattr("echo_node.engines.mlx.PREFILL_PROMPTS", prompts)
        driver = loaded(base, most)
        driver.activate(1, adapters[0])
        found.append([answer.tokens for answer in driver.generate(work)])
    assert found[1:] == found[:1] * 3


def test_the_context_is_never_exceeded(driver: Driver, base: Path, adapters: list[Path]) -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=1000, stop=())
    work = [Job([5] * length, 1, 0, sampling) for length in (CONTEXT - 1, CONTEXT - 5, 3)]
    answers = driver.generate(work)
    assert [(len(a.tokens), a.finish) for a in answers] == [
        (1, "length"), (5, "length"), (CONTEXT - 3, "length"),
    ]  # fmt: skip
    for job, answer in zip(work, answers, strict=True):
        check_completion(reference(base, adapters[0]), job, answer)


def test_answers_in_flight_finish_under_the_version_they_began_with(
    driver: Driver, base: Path, adapters: list[Path]
) -> None:
    work = jobs(12, limit=30, stop=())
    for number, job in enumerate(work[:6]):
        driver.submit(number, job)
    for _ in range(9):
        assert driver.step() == []
    driver.activate(2, adapters[1])
    for number, job in enumerate(work[6:], start=6):
        driver.submit(number, job)
    driver.release(1)
    answers = finish(driver)
    for number, job in enumerate(work):
        version, answer = answers[number]
        assert version == (1 if number < 6 else 2)
        check_completion(reference(base, adapters[version - 1]), job, answer)


def test_two_hundred_versions_under_load_mix_nothing_and_leak_nothing(
    base: Path, adapters: list[Path]
) -> None:
    work = jobs(8, limit=12)
    driver = loaded(base, 32)
    expected = []
    for version, adapter in enumerate(adapters):
        driver.activate(version, adapter)
        expected.append(driver.generate(work))
        driver.release(version)
    assert expected[0] != expected[1]
    of_number: dict[int, tuple[int, int]] = {}
    done = 0
    held = []
    for version in range(2, 202):
        driver.activate(version, adapters[version % 2])
        driver.release(version - 1)
        for i, job in enumerate(work):
            of_number[version * 100 + i] = version, i
            driver.submit(version * 100 + i, job)
        for _ in range(5):
            for answer in driver.step():
                version_then, i = of_number.pop(answer.number)
                assert answer.version == version_then
                assert answer.completion.tokens == expected[version_then % 2][i].tokens
                done += 1
        held.append(mx.get_active_memory())
    done += len(finish(driver))
    assert done == 200 * len(work)
    assert max(held[150:]) < 1.2 * max(held[:50])
    assert len(driver.engine._policies) == 1
    idle = mx.get_active_memory()
    driver.engine.close()
    assert mx.get_active_memory() < idle


def test_dropped_jobs_are_forgotten_wherever_they_are(
    base: Path, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_batch, "PREFILL_TOKENS", 4)
    driver = loaded(base, 8)
    driver.activate(1, adapters[0])
    work = jobs(16, stop=())
    for number, job in enumerate(work):
        driver.submit(number, job)
    for _ in range(12):
        driver.step()
    engine = driver.engine
    running = {row.number for row in engine._rows()}
    waiting = set(range(16)) - running
    gone = {min(running), max(running), min(waiting), max(waiting)}
    driver.drop([*gone, 99])
    assert engine.running == 12
    answers = finish(driver)
    assert answers.keys() == set(range(16)) - gone
    policy = reference(base, adapters[0])
    for number, (_, answer) in answers.items():
        check_completion(policy, work[number], answer)
    driver.drop(range(16))
    assert driver.generate(work)


def test_no_more_rows_run_than_fit_into_memory_or_were_asked_for(
    base: Path, adapters: list[Path]
) -> None:
    driver = loaded(base, 8)
    driver.activate(1, adapters[0])
    engine = driver.engine
    most = 0
    for limit, resized in ((8, 8), (3, 3), (0, 1)):
        engine.resize(limit)
        for number, job in enumerate(jobs(12)):
            driver.submit(number, job)
        while driver.running:
            driver.step()
            most = max(most, sum(1 for _ in engine._rows()))
        assert most == resized
        most = 0
    tight = loaded(base, 8, memory_bytes=mx.get_active_memory() + (1 << 20))
    assert tight.engine._fitting(60) < tight.engine._fitting(20) + 1 <= 9
    tight.activate(1, adapters[0])
    assert len(tight.generate(jobs(12))) == 12
    mx.set_memory_limit(1 << 40)


def test_a_device_that_says_nothing_of_itself_is_good_enough(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> dict[str, Any]:
        raise RuntimeError("no such device")

    monkeypatch.setattr("echo_node.engines.mlx.mx.device_info", silent)
    assert MlxEngine(max_sequences=4).load(base, "float32").device == "unknown"
    monkeypatch.setattr("echo_node.engines.mlx.mx.device_info", dict)
    assert MlxEngine(max_sequences=4).load(base, "bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("said", "kind"), [("[malloc] Unable to allocate 9 bytes.", MemoryError), ("no", EngineError)]
)
def test_a_failure_loses_the_jobs_that_ran_and_nothing_else(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[Exception]
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError(said)

    work = jobs(6)
    expected = driver.generate(work)
    for number, job in enumerate(work):
        driver.submit(number, job)
    driver.step()
    with monkeypatch.context() as broken:
        broken.setattr(mlx_batch.Batch, "_begin", failing)
        with pytest.raises(kind):
            driver.step()
    assert driver.running == driver.engine.running == 0
    assert driver.generate(work) == expected


# --- dialogues, and the engine's process ----------------------------------------------------------


@pytest.mark.parametrize("kept_bytes", [mlx.KEPT_BYTES, 20_000, 0])
def test_dialogues_read_on_from_what_is_kept(
    base: Path,
    adapters: list[Path],
    words: TurnText,  # noqa: F811
    kept_bytes: int,
) -> None:
    engine = MlxEngine(max_sequences=16)
    engine.prefixes = Prefixes(kept_bytes)
    driver = Driver(engine, lambda stop: words)
    driver.load(base, "float32")
    driver.activate(1, adapters[0])
    policy = reference(base, adapters[0])
    work = dialogues(24)
    for job, answer in zip(work, driver.generate(work), strict=True):
        check_dialogue(policy, job, answer, words)
    prefixes = engine.prefixes
    if kept_bytes == mlx.KEPT_BYTES:
        assert prefixes.reused > prefixes.read > 0
        driver.activate(2, adapters[1])
        driver.release(1)
        assert len(prefixes) == 0 == prefixes.size
    else:
        assert (prefixes.reused > 0) == (kept_bytes > 0)


def test_the_engines_process_runs_it(base: Path, adapters: list[Path], tmp_path: Path) -> None:
    work = jobs(8)

    async def main() -> None:
        log = tmp_path / "log"
        async with open_engine(threads=1, max_sequences=4, log_path=log, engine="mlx") as engine:
            info = await engine.load(base, "float32")
            assert (info.name, info.vocab_size, info.context) == ("mlx", VOCAB, CONTEXT)
            with pytest.raises(EngineError, match="cannot read"):
                await engine.activate(1, tmp_path)
            await engine.activate(1, adapters[0])
            policy = reference(base, adapters[0])
            for job, answer in zip(work, await engine.generate(work), strict=True):
                check_completion(policy, job, answer)
            engine.kill()
            with pytest.raises(ProcessError, match="ended with code -9"):
                await engine.generate(work)
            assert len(await engine.generate(work[:2])) == 2  # by another process

    trio.run(main)


# --- what is refused ------------------------------------------------------------------------------


def spoilt(adapter: Path, folder: Path, change: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    tensors = load_file(adapter / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def first_nan(tensors: dict[str, Any]) -> None:
    next(iter(tensors.values()))[0, 0] = float("nan")


def huge(tensors: dict[str, Any]) -> None:
    for tensor in tensors.values():
        tensor.fill_(1e30)


def one_missing(tensors: dict[str, Any]) -> None:
    del tensors[next(iter(tensors))]


def a_layer_missing(tensors: dict[str, Any]) -> None:
    for key in [key for key in tensors if "layers.0.mlp.up_proj" in key]:
        del tensors[key]


def other_width(tensors: dict[str, Any]) -> None:
    key = next(key for key in tensors if "q_proj.lora_A" in key)
    tensors[key] = torch.zeros(4, 31)


def whole_numbers(tensors: dict[str, Any]) -> None:
    for key, tensor in tensors.items():
        tensors[key] = tensor.int()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (first_nan, "non-finite number in"), (huge, "non-finite logits"), (one_missing, "only"),
        (a_layer_missing, "another shape"), (other_width, "31 inputs"), (whole_numbers, "finite"),
    ],
)  # fmt: skip
def test_a_bad_version_is_refused_and_the_last_good_one_stays(
    driver: Driver, adapters: list[Path], tmp_path: Path, change: Any, said: str
) -> None:
    expected = driver.generate(jobs(4))
    bad = spoilt(adapters[1], tmp_path / "bad", change)
    with pytest.raises(EngineError, match=said):
        driver.activate(2, bad)
    assert driver.active == 1
    assert driver.generate(jobs(4)) == expected
    driver.activate(3, adapters[1])
    assert driver.generate(jobs(4)) != expected


def test_files_that_are_no_safetensors_are_refused(
    driver: Driver, adapters: list[Path], tmp_path: Path
) -> None:
    bad = spoilt(adapters[0], tmp_path / "bad", lambda _: None)
    file = bad / "adapter_model.safetensors"
    good = file.read_bytes()
    for content in (b"", b"nonsense", good[:-9], b"\xff" * 8 + good[8:]):
        file.write_bytes(content)
        with pytest.raises(EngineError, match="cannot read"):
            driver.activate(2, bad)
    file.unlink()
    with pytest.raises(EngineError, match="cannot read"):
        driver.activate(2, bad)


def test_bases_that_mlx_cannot_be_trusted_with_are_refused(base: Path, tmp_path: Path) -> None:
    sliding = make_base(tmp_path / "sliding", "sliding")
    with pytest.raises(EngineError, match="sliding attention"):
        loaded(sliding)
    config = (base / "config.json").read_text(encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    for old, new, said in (
        ('"qwen2"', '"gemma2"', "architecture 'gemma2'"),
        ('"hidden_size": 32', '"hidden_size": 64', "cannot load"),
        ('"model_type"', '"model_file": "x.py", "model_type"', "model_file"),
        ('"model_type"', '"quantization": {"bits": 4}, "model_type"', "quantization"),
    ):
        assert old in config
        (other / "config.json").write_text(config.replace(old, new), encoding="utf-8")
        with pytest.raises(EngineError, match=said):
            loaded(other)


# --- versions that are whole models ---------------------------------------------------------------


def whole(base: Path, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def test_versions_may_be_whole_models(base: Path, adapters: list[Path], tmp_path: Path) -> None:
    driver = loaded(base)
    versions = [whole(base, tmp_path / str(seed), seed) for seed in (1, 2)]
    work = jobs(8)
    for version, folder in enumerate(versions):
        driver.activate(version, folder)
        for number, job in enumerate(work):
            driver.submit(100 * version + number, job)
        driver.step()
    for number, (version, answer) in finish(driver).items():
        policy = AutoModelForCausalLM.from_pretrained(versions[version]).eval()
        check_completion(policy, work[number % 100], answer)
    with pytest.raises(EngineError, match="not both"):
        driver.activate(3, adapters[0])
    tensors = load_file(versions[0] / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    (tmp_path / "bad").mkdir()
    save_file(tensors, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(EngineError, match=r"norm\.weight is 31, where the base model has 32"):
        driver.activate(3, tmp_path / "bad")
    driver.engine.remove(0)
    driver.engine.remove(1)
    driver.engine.add(5, adapters[0])  # the base is as it was loaded
    driver.engine.submit(1, 5, work[0])
    finished = []
    while driver.engine.running:
        finished += driver.engine.step()
    check_completion(reference(base, adapters[0]), work[0], finished[0].completion)
