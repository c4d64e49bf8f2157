"""The torch engine in dialogues: what it keeps between turns changes no token, only the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_models import CONTEXT, VOCAB, configs, make_adapter, make_base, reference
from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers

from echo_node.engines.base import Completion, Job
from echo_node.engines.driver import Driver
from echo_node.engines.prefixes import Prefix, Prefixes
from echo_node.engines.torch import TorchEngine
from echo_p2p.dialogue import Rules, fault_in
from echo_p2p.sampling import keys_to_torch, row_keys, sample
from echo_p2p.text import TurnText, environment_says, in_tokens
from echo_p2p.wire import Sampling, Turns, pack_tokens

torch.set_num_threads(1)

STOP = (2, 7, 11, 19, 23, 31, 37, 41, 43, 53)
LIMIT = 70


@pytest.fixture(scope="module")
def text() -> TurnText:
    """Words, numbers among them, for a model that has never seen one."""
    words = ["<unk>", *(f"w{i}" for i in range(1, 30)), *map(str, range(1, 28)), "higher", "lower"]
    vocab = {word: number for number, word in enumerate([*words, ":", "a"])}
    assert len(vocab) == VOCAB
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return TurnText(raw, STOP)


def engine_of(
    tmp_path: Path, architecture: str, text: TurnText | None = None, **options: object
) -> tuple[Driver, Path]:
    base = make_base(tmp_path / "base", architecture)
    adapter = make_adapter(base, tmp_path / "adapter", 1)
    engine = TorchEngine(max_sequences=64, device="cpu", **options)  # type: ignore[arg-type]
    driver = Driver(engine, None if text is None else lambda stop: text)
    driver.load(base, "float32")
    driver.activate(1, adapter)
    return driver, adapter


def kept_by(driver: Driver) -> Prefixes:
    assert isinstance(driver.engine, TorchEngine)
    return driver.engine.prefixes


def jobs(count: int) -> list[Job]:
    """Dialogues of up to six turns with unequal prompts, and one answer in five without turns."""
    sampling = Sampling(temperature=1.0, max_new_tokens=LIMIT, stop=STOP)
    turns = Turns(
        environment="guess-number/1", state=b'{"number":13,"high":27}', before=pack_tokens([3, 4]),
        after=pack_tokens([5]), max_turns=6, turn_tokens=9,
    )  # fmt: skip
    return [
        Job([3 + i // 4] * (1 + i // 4), 1000 + i // 4, i % 4, sampling, turns if i % 5 else None)
        for i in range(count)
    ]


@pytest.mark.parametrize("architecture", sorted(configs()))
def test_dialogues_are_what_a_plain_forward_pass_derives(
    architecture: str, tmp_path: Path, text: TurnText
) -> None:
    engine, adapter = engine_of(tmp_path, architecture, text)
    policy = reference(tmp_path / "base", adapter)
    work = jobs(24)
    answers = engine.generate(work)
    for job, answer in zip(work, answers, strict=True):
        check(policy, job, answer, text)
    assert sum(len(answer.observed) for answer in answers) > 24
    kept = kept_by(engine)
    assert kept.reused > kept.read > 0


def test_a_context_that_is_full_ends_a_dialogue_as_its_limit_does(
    tmp_path: Path, text: TurnText
) -> None:
    engine, adapter = engine_of(tmp_path, "qwen2", text)
    policy = reference(tmp_path / "base", adapter)
    for room in (1, 5, 20):
        work = [replace(job, prompt=[4] * (CONTEXT - room)) for job in jobs(24) if job.turns]
        for job, answer in zip(work, engine.generate(work), strict=True):
            assert 1 <= len(answer.tokens) <= room
            limited = replace(job.sampling, max_new_tokens=room)
            check(policy, replace(job, sampling=limited), answer, text)


@torch.no_grad()
def check(policy: torch.nn.Module, job: Job, answer: Completion, text: TurnText) -> None:
    """Derive the sampled tokens again in one pass; each has the noise of its place."""
    logits = policy(input_ids=torch.tensor([job.prompt + answer.tokens])).logits[0].float()
    logits = logits[len(job.prompt) - 1 : -1]
    count = len(answer.tokens)
    sampled = torch.ones(count, dtype=torch.bool)
    for start, end in answer.observed:
        sampled[start:end] = False
    keys = keys_to_torch(row_keys([(job.seed, job.index, i) for i in range(count)]))
    tokens = torch.tensor(answer.tokens)
    assert sample(logits, keys, 1.0)[sampled].tolist() == tokens[sampled].tolist()
    expected = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    claimed = torch.tensor(answer.logprobs)
    assert (expected - claimed)[sampled].abs().max() < 1e-4
    assert not claimed[~sampled].any()
    reply = in_tokens(environment_says(job.turns), job.turns, text) if job.turns else lambda _: None
    rules = Rules.of(job.sampling, job.turns)
    assert fault_in(answer.tokens, answer.observed, rules, reply) == ""


@pytest.mark.parametrize("kept_bytes", [0, 20_000])
def test_what_had_no_room_is_read_again(tmp_path: Path, text: TurnText, kept_bytes: int) -> None:
    work = jobs(24)
    roomy, _ = engine_of(tmp_path / "roomy", "qwen2", text)
    tight, _ = engine_of(tmp_path / "tight", "qwen2", text, kept_bytes=kept_bytes)
    same = [answer.tokens for answer in roomy.generate(work)]
    assert [answer.tokens for answer in tight.generate(work)] == same
    assert (kept_by(tight).reused > 0) == (kept_bytes > 0)
    assert kept_by(tight).read + kept_by(tight).reused == (
        kept_by(roomy).read + kept_by(roomy).reused
    )
    assert kept_by(tight).read > kept_by(roomy).read


def test_a_single_turn_of_a_dialogue_elsewhere_keeps_its_place(
    tmp_path: Path, text: TurnText
) -> None:
    """As when the hub replies: each turn is a job of its own, with the noise of where it stands."""
    engine, _ = engine_of(tmp_path, "qwen2", text)
    for job in jobs(24):
        (whole,) = engine.generate([job])
        for _, end in whole.observed:
            so_far = whole.tokens[:end]
            prompt = [*job.prompt, *so_far]
            later = Job(prompt, job.seed, job.index, job.sampling, start=end, keep=True)
            (turn,) = engine.generate([later])
            follows = whole.tokens[end : end + len(turn.tokens)]
            assert turn.tokens[: len(follows)] == follows
            assert kept_by(engine).take((1, job.seed, job.index), [*prompt, *turn.tokens, 1])


def test_another_policy_reads_everything_itself(tmp_path: Path) -> None:
    engine, adapter = engine_of(tmp_path, "qwen2")
    (job,) = jobs(2)[1:]
    first = engine.generate([_turn(job)])[0]
    assert len(kept_by(engine)) == 1
    engine.activate(2, adapter)
    engine.release(1)
    assert len(kept_by(engine)) == 0
    engine.generate([_turn(job, [*job.prompt, *first.tokens, 5])])
    assert kept_by(engine).reused == 0


def _turn(job: Job, prompt: list[int] | None = None) -> Job:
    return Job(prompt or job.prompt, job.seed, job.index, job.sampling, keep=True)


def test_a_prefix_is_given_for_its_own_continuation_alone() -> None:
    def prefix(*tokens: int) -> Prefix:
        part = torch.zeros(2, len(tokens), 4)
        return Prefix(list(tokens), [(part, part.clone())])

    kept = Prefixes(max_bytes=3 * prefix(1, 2).size)
    kept.put((1, 1, 0), prefix(1, 2))
    for stream in ((2, 1, 0), (1, 1, 1)):
        assert kept.take(stream, [1, 2, 3]) is None
    for tokens in ([1, 2], [1, 3, 3]):
        assert kept.take((1, 1, 0), tokens) is None
    found = kept.take((1, 1, 0), [1, 2, 3])
    assert found is not None
    assert found.tokens == [1, 2]
    assert kept.take((1, 1, 0), [1, 2, 3]) is None  # once
    for number in range(5):
        kept.put((1, number, 0), prefix(1, 2))
    assert [kept.take((1, number, 0), [1, 2, 3]) is None for number in range(5)] == (
        [True, True, False, False, False]
    )
    kept.put((1, 9, 0), prefix(*range(99)))  # more than there is room for
    assert len(kept) == 0
