"""What do packing, layers computed again, and torch.compile do to the time of an update?

    python benchmarks/learner_speed.py [--compile] [--padding] [--sequences N]

On the packaged model, forward and backward of the same 256 sequences in micro-batches of 8,192
tokens, in three distributions of lengths: `sums` (the demo's, nearly alike), `reasoning` (prompts
of 20 to 80 tokens, log-normal answers up to 400), `two kinds` (short ones, and some of 400). The
ways take turns in one process, and each is shown against `sorted`, ours without packing; `as it
was` sorts by length and fills the budget, whatever the padding. Times are medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from echo_hub.config import LearnerSection
from echo_hub.learner.batches import micro_batches, padded_tokens
from echo_hub.learner.policy import Policy, PromptAndAnswer
from echo_hub.models import addmix3_path

BUDGET, SEQUENCES, ROUNDS = 8192, 256, 3


def sums(chance: random.Random) -> tuple[int, int]:
    return 8, chance.randint(24, 34)


def reasoning(chance: random.Random) -> tuple[int, int]:
    return chance.randint(20, 80), min(400, 1 + int(chance.lognormvariate(4.4, 0.8)))


def two_kinds(chance: random.Random) -> tuple[int, int]:
    return 20, 380 if chance.random() < 0.2 else chance.randint(10, 40)


KINDS: dict[str, Callable[[random.Random], tuple[int, int]]] = {
    "sums": sums,
    "reasoning": reasoning,
    "two kinds": two_kinds,
}


def sorted_only(lengths: Sequence[int]) -> list[list[int]]:
    """Longest first, until the budget is full: how batches were cut before."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for i in order:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > BUDGET:
            batches.append([])
        batches[-1].append(i)
    return batches


def load(**learner: bool) -> Policy:
    config = LearnerSection.model_validate(learner)
    return Policy.load(addmix3_path(), config, dtype="float32", seed=0)


def one_pass(
    policy: Policy, sequences: Sequence[PromptAndAnswer], batches: list[list[int]]
) -> float:
    started = time.perf_counter()
    for batch in batches:
        policy.logprobs([sequences[i] for i in batch]).sum().backward()
    return time.perf_counter() - started


def compiled() -> Policy:
    policy = load()
    policy.packs = False
    policy._decoder = torch.compile(policy._decoder, dynamic=True)
    return policy


def draw(kind: str, count: int) -> list[PromptAndAnswer]:
    chance = random.Random(0)
    sequences: list[PromptAndAnswer] = []
    for _ in range(count):
        prompt, answer = KINDS[kind](chance)
        tokens = [chance.randrange(3, 58) for _ in range(prompt + answer)]
        sequences.append((tokens[:prompt], tokens[prompt:]))
    return sequences


def count(kind: str, sequences: int) -> None:
    """Batches and padding of each way of cutting."""
    lengths = [len(prompt) + len(answer) for prompt, answer in draw(kind, sequences)]
    ways = {
        "as it was": (sorted_only(lengths), False),
        "sorted": (micro_batches(lengths, BUDGET), False),
        "packed": (micro_batches(lengths, BUDGET, packed=True), True),
    }
    for way, (batches, packed) in ways.items():
        computed = sum(padded_tokens([lengths[i] for i in b], packed=packed) for b in batches)
        padding = 1 - sum(lengths) / computed
        print(f"{kind:10} {way:10} {len(batches):3} batches, padding {padding:5.1%}")


def compare(kind: str, ways: dict[str, Policy], count: int) -> None:
    sequences = draw(kind, count)
    lengths = [len(prompt) + len(answer) for prompt, answer in sequences]
    cuts = {
        way: sorted_only(lengths)
        if way == "as it was"
        else micro_batches(lengths, BUDGET, packed=policy.packs)
        for way, policy in ways.items()
    }
    first = {way: one_pass(policy, sequences, cuts[way]) for way, policy in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, policy in ways.items():
            times[way].append(one_pass(policy, sequences, cuts[way]))
    plain = statistics.median(times["sorted"])
    for way, policy in ways.items():
        computed = sum(
            padded_tokens([lengths[i] for i in batch], packed=policy.packs) for batch in cuts[way]
        )
        took, padding = statistics.median(times[way]), 1 - sum(lengths) / computed
        print(
            f"{kind:10} {way:16} {len(cuts[way]):3} batches, padding {padding:5.1%}, "
            f"{took:6.2f} s, x {took / plain:.2f}, first {first[way]:6.2f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of the learner's forward and backward.")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--padding", action="store_true", help="count only")
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    args = parser.parse_args()
    if args.padding:
        for kind in KINDS:
            count(kind, args.sequences)
        return
    torch.set_num_threads(1)
    apart = [load(), load()]
    for policy in apart:
        policy.packs = False
    ways = {
        "as it was": apart[0],
        "sorted": apart[1],
        "packed": load(),
        "packed, again": load(gradient_checkpointing=True),
    }
    if args.compile:
        ways["sorted, compiled"] = compiled()
    for kind in KINDS:
        compare(kind, ways, args.sequences)


if __name__ == "__main__":
    main()
