"""The audit: honest work passes with nothing to show, and each way of cheating shows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from learner_support import Sampled, load_policy, make_config, scored, seeded_groups
from msgspec import structs

from echo_hub.audit.derive import Auditor
from echo_hub.audit.margins import group_keys, token_evidence
from echo_hub.audit.reader import Reader
from echo_hub.audit.sequential import EDGES, NodeEvidence
from echo_hub.learner.messages import Audit, Audited, AuditRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_hub.models import addmix3_path
from echo_hub.rollouts.checks import Code, check_audit
from echo_node.engines.torch import TorchEngine
from echo_p2p.errors import LearnerError
from echo_p2p.sampling import gumbel_numpy, row_keys

CONFIG = make_config()
GROUPS = 6


@dataclasses.dataclass(frozen=True)
class World:
    """A policy at version 3, with the adapters of versions 0 and 3, and honest work of both."""

    policy: Policy
    adapters: dict[int, Path]
    honest: dict[int, list[Sampled]]

    def claim(self, group: Sampled, version: int, temperature: float = 1.0) -> Audit:
        claims = zip(group.answers, group.logprobs, strict=True)
        return Audit(
            version=version,
            adapter=str(self.adapters[version]),
            prompt=group.prompt,
            seed=group.seed,
            temperature=temperature,
            rollouts=[AuditRollout(tokens, logprobs) for tokens, logprobs in claims],
        )

    def audit(self, group: Sampled, version: int, temperature: float = 1.0) -> Audited:
        return Auditor(self.policy).derive(self.claim(group, version, temperature))

    def codes(self, groups: list[Sampled], version: int) -> set[Code | None]:
        return {verdict(self.audit(group, version)) for group in groups}


def verdict(evidence: Audited) -> Code | None:
    rejection = check_audit(
        evidence,
        max_margin=CONFIG.audit.max_margin,
        max_logprob_difference=CONFIG.audit.max_logprob_difference,
    )
    return rejection and rejection.code


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("checkpoints")
    trainer = Trainer(load_policy(CONFIG), CONFIG)
    trainer.save(folder / "v0")
    rng = random.Random(11)
    honest = {0: seeded_groups(trainer.policy, rng, GROUPS)}
    for version in range(3):
        groups = [scored(g, version) for g in seeded_groups(trainer.policy, rng, 8)]
        trainer.train(groups, folder / f"v{version + 1}")
    honest[3] = seeded_groups(trainer.policy, rng, GROUPS)
    adapters = {version: folder / f"v{version}" / "adapter" for version in (0, 3)}
    return World(trainer.policy, adapters, honest)


@pytest.mark.parametrize("version", [0, 3])
def test_honest_work_has_no_mismatch(world: World, version: int):
    for group in world.honest[version]:
        evidence = world.audit(group, version)
        assert evidence.tokens == sum(map(len, group.answers))
        assert evidence.mismatches == 0
        assert evidence.max_margin == 0.0
        assert evidence.max_logprob_difference < 1e-3
        assert verdict(evidence) is None


def test_evidence_says_what_there_was_to_find(world: World):
    """Tail counts, the chance that another draw differs, and entropy, of honest and false work."""
    honest = [world.audit(group, 3) for group in world.honest[3]]
    assert all(found.margins == (0,) * len(EDGES) for found in honest)
    assert all(0 < found.chance < found.bits < found.tokens for found in honest)
    redrawn = [dataclasses.replace(group, seed=group.seed + 1) for group in world.honest[3]]
    false = [world.audit(group, 3) for group in redrawn]
    assert all(list(found.margins) == sorted(found.margins, reverse=True) for found in false)
    changed, chance = sum(f.mismatches for f in false), sum(f.chance for f in false)
    assert abs(changed - chance) < 5 * chance**0.5  # an independent draw differs by chance


def test_a_node_is_condemned_for_all_it_did(world: World):
    honest, false = NodeEvidence(), NodeEvidence()
    for group in world.honest[3]:
        honest = honest.update(world.audit(group, 3))
    for group in world.honest[0]:
        false = false.update(world.audit(group, 3))
    assert not honest.condemned
    assert false.condemned


def test_the_temperature_is_part_of_the_claim(world: World):
    warm = seeded_groups(world.policy, random.Random(12), GROUPS, temperature=1.5)
    assert all(world.audit(group, 3, temperature=1.5).mismatches == 0 for group in warm)
    assert Code.AUDIT_MARGIN in world.codes(warm, 3)


def test_one_changed_token_is_caught(world: World):
    for group in world.honest[3]:
        answers = [list(answer) for answer in group.answers]
        answers[2][9] = 4 if answers[2][9] == 3 else 3
        evidence = world.audit(dataclasses.replace(group, answers=answers), 3)
        assert evidence.max_margin > 1.0
        assert verdict(evidence) is Code.AUDIT_MARGIN


def test_what_was_observed_is_no_evidence(world: World):
    """Tokens the policy did not sample count for nothing; those around keep their places."""
    claims = [world.claim(group, 3) for group in world.honest[3]]
    seen = []
    for claim in claims:
        rollouts = [
            AuditRollout(one.tokens, [*one.logprobs[:-2], -5.0, one.logprobs[-1]],
                         [(len(one.tokens) - 2, len(one.tokens) - 1)])
            for one in claim.rollouts
        ]  # fmt: skip
        seen.append(structs.replace(claim, rollouts=rollouts))
    auditor = Auditor(world.policy)
    for plain, with_spans in zip(auditor.derive_all(claims), auditor.derive_all(seen), strict=True):
        assert isinstance(plain, Audited)
        assert isinstance(with_spans, Audited)
        assert with_spans.tokens == plain.tokens - len(claims[0].rollouts)
        assert verdict(with_spans) is None
    unsaid = structs.replace(
        seen[0], rollouts=[structs.replace(one, observed=[]) for one in seen[0].rollouts]
    )
    assert verdict(auditor.derive(unsaid)) is Code.AUDIT_LOGPROB


CHEATS: dict[str, Callable[[World], list[Sampled]]] = {
    "another adapter": lambda world: world.honest[0],
    "another seed": lambda world: [
        dataclasses.replace(group, seed=group.seed + 1) for group in world.honest[3]
    ],
    "rollouts in another order": lambda world: [
        dataclasses.replace(group, answers=group.answers[::-1], logprobs=group.logprobs[::-1])
        for group in world.honest[3]
    ],
    "greedy": lambda world: seeded_groups(world.policy, random.Random(13), GROUPS, greedy=True),
    "answers of another group": lambda world: [
        dataclasses.replace(group, answers=other.answers, logprobs=other.logprobs)
        for group, other in zip(world.honest[3], world.honest[3][1:], strict=False)
    ],
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_caught(world: World, name: str):
    evidence = [world.audit(group, 3) for group in CHEATS[name](world)]
    assert sum(found.mismatches for found in evidence) > 0
    assert Code.AUDIT_MARGIN in {verdict(found) for found in evidence}


@pytest.mark.parametrize("claim", [-0.5, float("nan"), float("inf"), float("-inf"), -1e38])
def test_invented_logprobs_are_caught(world: World, claim: float):
    group = world.honest[3][0]
    logprobs = [list(row) for row in group.logprobs]
    logprobs[-1][-1] = claim
    evidence = world.audit(dataclasses.replace(group, logprobs=logprobs), 3)
    assert evidence.mismatches == 0
    assert verdict(evidence) is Code.AUDIT_LOGPROB


def test_an_audit_leaves_the_policy_alone(world: World):
    before = {name: weight.detach().clone() for name, weight in world.policy.weights.items()}
    world.audit(world.honest[0][0], 0)
    assert all(torch.equal(before[n], weight) for n, weight in world.policy.weights.items())


def test_reading_with_a_shared_prompt_is_reading(world: World):
    """The prompt's keys and values, run once, give the logits of each sequence read alone."""
    group = world.honest[3][0]
    answers = [group.answers[0], group.answers[1][:1], group.answers[2][:7]]
    reader = Reader(world.policy)
    with torch.no_grad(), reader.wearing(world.adapters[0]):
        hidden, tokens = reader.answers([(group.prompt, answers)])
    with torch.no_grad(), world.policy.wearing(world.policy.read_adapter(world.adapters[0])):
        plain, expected = world.policy.answers([(group.prompt, answer) for answer in answers])
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(hidden, plain, rtol=1e-4, atol=1e-4)


def test_groups_audited_together_show_what_each_shows_alone(world: World):
    claims = [
        (world.claim(group, version), version)
        for version in (3, 0, 3)
        for group in world.honest[version]
    ]
    audits = [claim for claim, _ in claims]
    shorter = dataclasses.replace(world.honest[3][0], prompt=world.honest[3][0].prompt[1:])
    audits.append(world.claim(shorter, 3))  # another length of prompt, and false
    lost = msgspec.structs.replace(audits[1], adapter="nowhere")
    empty = msgspec.structs.replace(audits[2], rollouts=[AuditRollout([], [])])
    audits[4:4] = [lost, empty]
    auditor = Auditor(world.policy)
    together = auditor.derive_all(audits)
    assert [i for i, found in enumerate(together) if isinstance(found, LearnerError)] == [4, 5]
    for audit, found in zip(audits, together, strict=True):
        if isinstance(found, Audited):
            alone = auditor.derive(audit)
            assert (found.tokens, found.mismatches) == (alone.tokens, alone.mismatches)
            assert found.max_margin == pytest.approx(alone.max_margin, abs=1e-4)
            assert found.bits == pytest.approx(alone.bits, rel=1e-4)
    assert together[-1].mismatches > 0


def test_the_auditor_merges_as_nodes_do(world: World):
    """In bfloat16 both compute with the same weights, to the bit."""
    config = make_config(base={"dtype": "bfloat16"})
    reader = Reader(load_policy(config))
    engine = TorchEngine(max_sequences=1, device="cpu")
    engine.load(addmix3_path(), "bfloat16")
    engine.add(3, world.adapters[3])
    engine.score(3, [1, 2])  # so its weights are in place
    before = {name: w.clone() for name, w in reader._policy.causal.named_parameters()}
    theirs = dict(engine._model.named_parameters())
    with reader.wearing(world.adapters[3]):
        ours = dict(reader._policy.causal.named_parameters())
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    after = dict(reader._policy.causal.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


def test_a_poisoned_adapter_is_no_evidence(world: World, tmp_path: Path):
    huge = {name: torch.full_like(w, 1e30) for name, w in world.policy.weights.items()}
    with world.policy.wearing(huge):
        world.policy.save_adapter(tmp_path / "adapter")
    poisoned = dataclasses.replace(world, adapters={3: tmp_path / "adapter"})
    with pytest.raises(LearnerError, match="finite"):
        poisoned.audit(world.honest[3][0], 3)


def by_the_book(logits: np.ndarray, tokens: list[int], seed: int, index: int, temperature: float):
    """Margins written out for one answer."""
    keys = row_keys([(seed, index, position) for position in range(len(tokens))])
    sums = logits / np.float32(temperature) + gumbel_numpy(keys, logits.shape[1])
    return [row.max() - row[token] for row, token in zip(sums, tokens, strict=True)]


@pytest.mark.parametrize("vocab_size", [5, 6000])  # below and above the sampler's two ways
def test_margins_are_those_of_the_definition(vocab_size: int):
    rng = np.random.default_rng(0)
    lengths, seed, temperature = [4, 1, 7], 2**62 + 5, 0.7
    logits = rng.normal(size=(sum(lengths), vocab_size), scale=3).astype(np.float32)
    tokens = rng.integers(vocab_size, size=sum(lengths)).tolist()
    expected, start = [], 0
    for index, length in enumerate(lengths):
        piece = slice(start, start + length)
        expected += by_the_book(logits[piece], tokens[piece], seed, index, temperature)
        start += length
    found = token_evidence(
        torch.from_numpy(logits),
        torch.tensor(tokens),
        torch.zeros(len(tokens)),
        keys=group_keys(seed, lengths),
        temperature=temperature,
    )
    np.testing.assert_allclose(found.margins.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(
        found.differences.numpy(),
        -torch.from_numpy(logits).log_softmax(-1).numpy()[range(len(tokens)), tokens],
        atol=1e-5,
    )
