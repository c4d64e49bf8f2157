"""vLLM says what torch says and what the auditor derives; it swaps versions and mixes none."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs and runs it")

from engine_support import (
    BASE,
    CONTEXT,
    EOS,
    answer_all,
    differences,
    edit_tensors,
    sums,
    write_adapter,
)
from tokenizers import Tokenizer, models, pre_tokenizers

from echo_hub.audit.derive import Auditor
from echo_hub.config import LearnerSection
from echo_hub.learner.messages import Audit, AuditRollout
from echo_hub.learner.policy import Policy
from echo_hub.tokens import Tokenizer as Hub
from echo_node.engines.base import Completion, Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_node.engines.vllm import Options, VllmEngine
from echo_p2p.errors import EngineError
from echo_p2p.text import TurnText
from echo_p2p.wire import Sampling, Turns, pack_tokens

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROWS = 64
OPTIONS = Options(max_sequences=ROWS, cache_bytes=48 << 20)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / str(seed), seed) for seed in range(4)]


def turn_ends() -> tuple[int, ...]:
    """Tokens that this base says often."""
    return (*EOS, *Hub.load(BASE).encode("+,=", "raw"))


@pytest.fixture(scope="module")
def text() -> TurnText:
    """Words, for a base whose own tokens are characters."""
    words = ["<unk>", *(f"w{i}" for i in range(26)), *map(str, range(1, 28))]
    words += ["higher", "lower", ":", "a"]
    vocab = {word: number for number, word in enumerate(words)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return TurnText(raw, turn_ends())


@pytest.fixture(scope="module")
def vllm_driver(adapters: list[Path], text: TurnText) -> Iterator[Driver]:
    """One engine for all tests: its start costs more than they do."""
    engine = VllmEngine(OPTIONS)
    driver = Driver(engine, lambda stop: text)
    info = driver.load(BASE, "float32")
    assert (info.name, info.device, info.vocab_size, info.context) == ("vllm", "cpu", 58, CONTEXT)
    driver.activate(0, adapters[0])
    yield driver
    engine.close()


@pytest.fixture
def vllm(vllm_driver: Driver, adapters: list[Path]) -> Iterator[Driver]:
    """Version 0 is active, none other is there, and nothing runs; so it is left, too."""
    yield vllm_driver
    vllm_driver.drop(range(1 << 20))
    vllm_driver.activate(0, adapters[0])
    for version in range(1, 1000):
        vllm_driver.release(version)
    assert vllm_driver.running == 0
    assert len(vllm_driver.engine._core._client.list_loras()) == 1  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def torch_driver(text: TurnText) -> Driver:
    driver = Driver(TorchEngine(max_sequences=ROWS, device="cpu"), lambda stop: text)
    driver.load(BASE, "float32")
    return driver


def by_torch(driver: Driver, adapter: Path, jobs: Sequence[Job]) -> list[Completion]:
    """The same jobs under one adapter, answered by torch."""
    version = int(adapter.name)
    driver.activate(version, adapter)
    return driver.generate(jobs)


# --- the same tokens ----------------------------------------------------------------------------


def test_a_thousand_rollouts_are_the_auditors_and_torchs_to_the_token(
    vllm: Driver, torch_driver: Driver, adapters: list[Path]
) -> None:
    jobs = sums(1000, max_new_tokens=28)
    ours = vllm.generate(jobs)
    assert {one.finish for one in ours} == {"stop", "length"}
    unequal, largest = differences(ours, by_torch(torch_driver, adapters[0], jobs))
    assert unequal == 0
    assert largest < 1e-4
    auditor = Auditor(Policy.load(BASE, LearnerSection(), dtype="float32", seed=0))
    groups = [
        Audit(
            version=0, adapter=str(adapters[0]), prompt=jobs[i].prompt, seed=jobs[i].seed,
            temperature=1.0,
            rollouts=[AuditRollout(one.tokens, one.logprobs) for one in ours[i : i + 8]],
        )
        for i in range(0, len(jobs), 8)
    ]  # fmt: skip
    for start in range(0, len(groups), 16):
        for found in auditor.derive_all(groups[start : start + 16]):
            assert not isinstance(found, Exception)
            assert found.mismatches == 0
            assert found.max_logprob_difference < 1e-4


def test_each_job_is_drawn_its_own_way(
    vllm: Driver, torch_driver: Driver, adapters: list[Path]
) -> None:
    jobs = [
        *sums(20, 1, temperature=0.6, top_k=5, stop=()),
        *sums(20, 2, top_p=0.7, max_new_tokens=7),
        *sums(20, 3, temperature=1.4, top_k=30, top_p=0.9, stop=(5, 6, 7)),
        *sums(20, 4, temperature=7.5),
        *(Job(one.prompt, one.seed, one.index, one.sampling, start=9) for one in sums(20, 5)),
    ]
    unequal, largest = differences(vllm.generate(jobs), by_torch(torch_driver, adapters[0], jobs))
    assert unequal == 0
    assert largest < 1e-4


def test_dialogues(vllm: Driver, torch_driver: Driver, adapters: list[Path]) -> None:
    turns = Turns(
        environment="guess-number/1", state=b'{"number":13,"high":27}', before=pack_tokens([3, 4]),
        after=pack_tokens([5]), max_turns=6, turn_tokens=9,
    )  # fmt: skip
    jobs = [
        Job(one.prompt, one.seed, one.index, one.sampling, turns)
        for one in sums(24, 6, max_new_tokens=60, stop=turn_ends())
    ]
    ours = vllm.generate(jobs)
    assert max(len(one.observed) for one in ours) > 1
    assert differences(ours, by_torch(torch_driver, adapters[0], jobs))[0] == 0


# --- versions -----------------------------------------------------------------------------------


def test_swapping_versions_under_load_mixes_none_and_keeps_memory(
    vllm: Driver, torch_driver: Driver, adapters: list[Path]
) -> None:
    swaps, per_version, load = 200, 8, 24  # three versions or so at a time
    work = sums(swaps * per_version, 7)
    process = psutil.Process()
    give_back = partial(ctypes.CDLL("libc.so.6").malloc_trim, 0)
    sizes: list[int] = []
    answered: dict[int, tuple[int, Completion]] = {}
    overlapped = 0

    def round_() -> None:
        for one in vllm.step():
            answered[one.number] = (one.version, one.completion)

    for version in range(1, swaps + 1):
        overlapped += vllm.running > 0
        vllm.activate(version, adapters[version % len(adapters)])
        vllm.release(version - 1)
        first = (version - 1) * per_version
        for number in range(first, first + per_version):
            vllm.submit(number, work[number])
        while vllm.running > load - per_version:
            round_()
        if version % 10 == 0:
            gc.collect()
            give_back()  # what is free, but kept by the C library for later
            sizes.append(process.memory_info().rss)
    while vllm.running:
        round_()
    assert overlapped > swaps - 5  # the load was never let go
    assert len(answered) == len(work)  # no answer was lost, and each is whole:
    assert all(number // per_version == version - 1 for number, (version, _) in answered.items())
    for kind, adapter in enumerate(adapters):
        numbers = [n for n, (version, _) in answered.items() if version % len(adapters) == kind]
        expected = by_torch(torch_driver, adapter, [work[n] for n in numbers])
        assert differences([answered[n][1] for n in numbers], expected)[0] == 0
    early, late = np.mean(sizes[5:10]), np.mean(sizes[-5:])
    adapter_bytes = sum(file.stat().st_size for file in adapters[0].iterdir())
    assert late - early < 20 * adapter_bytes  # of the hundred that came and went between


def test_the_prefix_cache_serves_no_other_version(
    vllm: Driver, torch_driver: Driver, adapters: list[Path]
) -> None:
    prompt = [3 + i % 50 for i in range(300)]
    jobs = [Job(prompt, 5, index, Sampling(temperature=1.0, max_new_tokens=9, stop=()))
            for index in range(4)]  # fmt: skip
    engine = vllm.engine
    assert isinstance(engine, VllmEngine)
    for version in (1, 2, 1, 2, 3):
        vllm.activate(version, adapters[version])
        before = engine.reused
        answers = vllm.generate(jobs)
        again = vllm.generate(jobs)
        assert engine.reused - before >= 4 * 256  # the second time, it was at hand
        assert differences(answers, again) == (0, pytest.approx(0.0, abs=1e-4))
        unequal, largest = differences(answers, by_torch(torch_driver, adapters[version], jobs))
        assert unequal == 0
        assert largest < 1e-4


def test_versions_answer_side_by_side(
    vllm: Driver, torch_driver: Driver, adapters: list[Path]
) -> None:
    for version in (1, 2, 3):
        vllm.activate(version, adapters[version])
    jobs = sums(48, 8, stop=())
    answers = answer_all(vllm, [(n, job, n % 4) for n, job in enumerate(jobs)])
    for version, adapter in enumerate(adapters):
        numbers = [n for n in answers if n % 4 == version]
        assert all(answers[n][0] == version for n in numbers)
        expected = by_torch(torch_driver, adapter, [jobs[n] for n in numbers])
        assert differences([answers[n][1] for n in numbers], expected)[0] == 0


# --- ends ---------------------------------------------------------------------------------------


def test_ends(vllm: Driver, torch_driver: Driver, adapters: list[Path]) -> None:
    endless = Sampling(temperature=1.0, max_new_tokens=1000, stop=())
    jobs = [Job([5] * length, 1, 0, endless) for length in (CONTEXT - 1, CONTEXT - 5, 3)]
    jobs += sums(16, 11, stop=tuple(range(1, 17)))
    jobs += sums(4, 12, max_new_tokens=1)
    answers = vllm.generate(jobs)
    assert [len(one.tokens) for one in answers[:3]] == [1, 5, CONTEXT - 3]
    assert {one.finish for one in answers[:3]} == {"length"}
    for one in answers[3:19]:
        stops = [place for place, token in enumerate(one.tokens) if token <= 16]
        assert one.finish == ("stop" if stops else "length")
        assert stops in ([], [len(one.tokens) - 1])
    assert [len(one.tokens) for one in answers[19:]] == [1] * 4
    assert differences(answers, by_torch(torch_driver, adapters[0], jobs))[0] == 0


def test_jobs_are_dropped_and_held_back(vllm: Driver) -> None:
    engine = vllm.engine
    engine.resize(8)
    try:
        jobs = sums(24, 13, stop=(), max_new_tokens=20)
        for number, job in enumerate(jobs):
            vllm.submit(number, job)
        sampled = engine.sampled
        assert vllm.step() == []
        assert vllm.step() == []
        assert engine.sampled - sampled <= 16  # of eight at a time
        assert engine.running == 24
        vllm.drop(range(4, 20))  # of those running and those waiting
        assert engine.running == 8
        done: dict[int, Completion] = {}
        while vllm.running:
            done |= {one.number: one.completion for one in vllm.step()}
        assert sorted(done) == [0, 1, 2, 3, 20, 21, 22, 23]
        assert engine.sampled - sampled >= 8 * 20
    finally:
        engine.resize(ROWS)
    again = vllm.generate([jobs[number] for number in sorted(done)])
    assert differences([done[number] for number in sorted(done)], again)[0] == 0


def test_scores_are_torchs(vllm: Driver, torch_driver: Driver, adapters: list[Path]) -> None:
    tokens = [3 + i % 50 for i in range(40)]
    jobs = sums(8, 14)
    for number, job in enumerate(jobs):
        vllm.submit(number, job)
    vllm.step()
    ours = vllm.score(tokens)
    done = {}
    while vllm.running:
        done |= {one.number: one.completion for one in vllm.step()}
    expected = by_torch(torch_driver, adapters[0], jobs)
    assert differences([done[n] for n in range(8)], expected)[0] == 0  # undisturbed
    assert ours == pytest.approx(torch_driver.score(tokens), abs=1e-4)


# --- what is refused ----------------------------------------------------------------------------


def _poison(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    next(iter(tensors.values()))[0, 0] = np.nan
    return tensors


def _overflow(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.full_like(value, 3e38) for name, value in tensors.items()}


def _without_one(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(list(tensors.items())[1:])


def _transposed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(value.T) for name, value in tensors.items()}


def _strange(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**tensors, "base_model.model.lm_head.lora_A.weight": np.ones((16, 128), np.float32)}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_poison, "non-finite number"),
        (_overflow, "non-finite logits"),
        (_without_one, "is missing"),
        (_transposed, "where the base model takes"),
        (_strange, "takes missing"),
    ],
)
def test_a_bad_adapter_changes_nothing(
    vllm: Driver, tmp_path: Path, spoil: object, complaint: str
) -> None:
    jobs = sums(4, 15)
    before = vllm.generate(jobs)
    edit_tensors(write_adapter(tmp_path / "bad", 9), spoil)
    with pytest.raises(EngineError, match=complaint):
        vllm.activate(1, tmp_path / "bad")
    assert vllm.active == 0
    assert differences(before, vllm.generate(jobs))[0] == 0


def test_an_adapter_of_another_rank_is_refused(vllm: Driver, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="another shape"):
        vllm.activate(1, write_adapter(tmp_path / "wide", 9, rank=32))
