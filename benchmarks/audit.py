"""What the audit finds, after how many tokens, and what it costs.

Honest work and every cheat in audit_world.py, on addmix3 and on SmolLM2-135M. Thresholds and rates
come from honest rollouts of the same model (`audit.calibration`), and their false-positive rate
from others. A cheat is judged twice: by its margins alone, as if it sent the log-probabilities of
the true policy (it can compute them, at the price of an audit), and with those that it had.
"changed" is the share of rollouts whose tokens are not the honest ones: the others are what the
lease ordered, however they were made.

    python benchmarks/audit.py [--models addmix3 smollm2] [--smollm2 SNAPSHOT] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from audit_world import CHEATS, Answers, World, addmix3, smollm2

from echo_hub.audit.calibration import Calibration, Setting, calibrate
from echo_hub.audit.derive import summary
from echo_hub.audit.margins import TokenEvidence
from echo_hub.audit.sequential import NodeEvidence
from echo_hub.learner.messages import Audited

SEEN = (250, 500, 1000, 2000, 5000, 10_000)
ORDERS = 40
HONEST_TOKENS = 1_000_000


def piece(evidence: TokenEvidence, part: slice) -> TokenEvidence:
    return TokenEvidence(*(values[part] for values in evidence))


def rollouts_of(evidence: TokenEvidence, group: Answers) -> list[TokenEvidence]:
    found, start = [], 0
    for tokens in group.tokens:
        found.append(piece(evidence, slice(start, start + len(tokens))))
        start += len(tokens)
    return found


def without_differences(evidence: TokenEvidence) -> TokenEvidence:
    return evidence._replace(differences=torch.zeros_like(evidence.differences))


def condemned_after(
    groups: list[Audited], calibration: Calibration, start: NodeEvidence, orders: int
) -> list[tuple[int, float] | None]:
    """Tokens and bits until the sequential test condemns, for random orders of the groups."""
    chance, found = random.Random(0), []
    for _ in range(orders):
        evidence, tokens, bits = start, 0, 0.0
        for _ in range(max(1, 40_000 // max(1, sum(g.tokens for g in groups)))):
            for group in chance.sample(groups, len(groups)):
                evidence = evidence.update(group, calibration.noise)
                tokens, bits = tokens + group.tokens, bits + group.bits
                if evidence.condemned:
                    break
            if evidence.condemned:
                break
        found.append((tokens, bits) if evidence.condemned else None)
    return found


def report(
    evidence: list[TokenEvidence],
    groups: list[Answers],
    honest: list[Answers],
    calibration: Calibration,
) -> dict[str, Any]:
    """What one kind of work shows."""
    rollouts = [
        summary(found)
        for answers, group in zip(evidence, groups, strict=True)
        for found in rollouts_of(answers, group)
    ]
    changed = [
        ours != theirs
        for group, other in zip(groups, honest, strict=False)
        for ours, theirs in zip(group.tokens, other.tokens, strict=True)
    ]
    whole = [summary(e) for e in evidence]

    def over(found: Audited) -> bool:
        return (
            found.max_margin > calibration.max_margin
            or found.max_logprob_difference > calibration.max_logprob_difference
        )

    sequential = condemned_after(whole, calibration, NodeEvidence(), ORDERS)
    done = sorted(found[0] for found in sequential if found)
    bits = sorted(found[1] for found in sequential if found)
    veteran = NodeEvidence().update(_honest_past(calibration), calibration.noise)
    late = [f[0] for f in condemned_after(whole, calibration, veteran, 20) if f]
    tokens = sum(found.tokens for found in whole)
    return {
        "tokens": tokens,
        "bits_per_token": sum(f.bits for f in whole) / tokens,
        "margins_over_1e-3": sum(f.margins[1] for f in whole) / tokens,
        "rollouts_changed": sum(changed) / len(changed),
        "rollouts_caught": sum(map(over, rollouts)) / len(rollouts),
        "caught_of_changed": sum(over(r) for r, c in zip(rollouts, changed, strict=True) if c)
        / max(1, sum(changed)),
        "groups_caught": sum(map(over, whole)) / len(whole),
        "condemned_by": {n: sum(t <= n for t in done) / ORDERS for n in SEEN},
        "tokens_median": done[len(done) // 2] if len(done) > ORDERS // 2 else None,
        "tokens_95": done[int(0.95 * ORDERS)] if len(done) > 0.95 * ORDERS else None,
        "bits_median": bits[len(bits) // 2] if len(bits) > ORDERS // 2 else None,
        "tokens_median_after_honest_past": statistics.median(late) if len(late) > 10 else None,
    }


def _honest_past(calibration: Calibration) -> Audited:
    share = HONEST_TOKENS / calibration.tokens
    none = (0,) * len(calibration.margins)
    return Audited(
        max_margin=0.0, max_logprob_difference=0.0, mismatches=0, tokens=HONEST_TOKENS,
        margins=none, differences=none, chance=calibration.chance * share,
        bits=calibration.bits * share,
    )  # fmt: skip


def calibrated(world: World, start: int, groups: int, dtype: str) -> Calibration:
    honest = world.generate(world.engine(world.newest, dtype), world.prompts(start, groups))
    rollouts = [summary(r) for g in honest for r in rollouts_of(world.audit(g), g)]
    setting = Setting(base=world.name, dtype=dtype, temperature=1.0, top_k=0, top_p=1.0)
    return calibrate(setting, rollouts, engine="torch", versions=[world.newest])


def cost(world: World, start: int, groups: int) -> dict[str, float]:
    """Audit time as a share of generation time, one thread: all groups at once, and one by one."""
    engine = world.honest_engine
    prompts = world.prompts(start, groups)
    world.audit(world.generate(engine, prompts[:1])[0])
    begun = time.perf_counter()
    work = world.generate(engine, prompts)
    together = time.perf_counter() - begun
    begun = time.perf_counter()
    for prompt in prompts[: max(2, groups // 4)]:
        world.generate(engine, [prompt])
    alone = (time.perf_counter() - begun) * groups / max(2, groups // 4)
    begun = time.perf_counter()
    for group in work:
        world.audit(group)
    audit = time.perf_counter() - begun
    floor = world.config.audit.floor
    return {
        "rows_in_a_batch": groups * world.size,
        "audit_share_of_batched_generation": audit / together,
        "audit_share_of_generation_group_by_group": audit / alone,
        "steady_share_of_batched_generation": floor * audit / together,
        "steady_share_of_generation_group_by_group": floor * audit / alone,
    }


def attack(world: World, groups: int, honest_groups: int) -> dict[str, Any]:
    begun = time.perf_counter()
    calibration = calibrated(world, 200_000, honest_groups, "float32")
    result: dict[str, Any] = {
        "versions": world.newest,
        "calibration": {
            name: getattr(calibration, name)
            for name in (
                "rollouts", "tokens", "mismatches", "largest_margin", "largest_difference",
                "max_margin", "max_logprob_difference", "margins", "differences",
                "margin_rates", "difference_rates", "false_positives",
                "false_positive_rate_upper",
            )
        },
        "cost": cost(world, 300_000, min(groups, 32)),
        "attacks": {},
    }  # fmt: skip
    honest: list[Answers] = []
    for name, cheat in {"honest": None, "honest bfloat16": None, **CHEATS}.items():
        size = max(6, groups // 3) if name.startswith("best") else groups
        prompts = world.prompts(400_000, size)
        if cheat is None:
            dtype = "bfloat16" if "bfloat16" in name else "float32"
            work = world.generate(world.engine(world.newest, dtype), prompts)
        elif "eight" in name and world.newest < 8:
            continue
        else:
            work = cheat(world, prompts)
        honest = honest or work
        evidence = [world.audit(group) for group in work]
        careful = [without_differences(found) for found in evidence]
        result["attacks"][name] = {
            "margins": report(careful, work, honest, calibration),
            "with_its_logprobs": report(evidence, work, honest, calibration),
        }
        print(f"{world.name}: {name} {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    result["seconds"] = time.perf_counter() - begun
    return result


def show(name: str, result: dict[str, Any]) -> None:
    calibration = result["calibration"]
    print(
        f"\n{name}: {calibration['rollouts']} honest rollouts, {calibration['tokens']} tokens, "
        f"{calibration['mismatches']} mismatches, largest difference of log-probability "
        f"{calibration['largest_difference']:.1e}; thresholds {calibration['max_margin']:.1e} and "
        f"{calibration['max_logprob_difference']:.1e}; false positives a rollout "
        f"{calibration['false_positives']}, at most {calibration['false_positive_rate_upper']:.1e}"
    )
    print(", ".join(f"{key} {value:.3g}" for key, value in result["cost"].items()))
    print(
        "| work | changed | tokens >1e-3 | rollouts caught | of changed | groups "
        "| tokens to ban, median (95 %) | bits | after 1e6 honest "
        "| own log-probs: rollouts | tokens to ban |\n" + "|---" * 11 + "|"
    )
    for work, both in result["attacks"].items():
        a, b = both["margins"], both["with_its_logprobs"]
        print(
            f"| {work} | {a['rollouts_changed']:.1%} | {a['margins_over_1e-3']:.2%} "
            f"| {a['rollouts_caught']:.1%} | {a['caught_of_changed']:.1%} "
            f"| {a['groups_caught']:.0%} | {_n(a['tokens_median'])} ({_n(a['tokens_95'])}) "
            f"| {_n(a['bits_median'])} | {_n(a['tokens_median_after_honest_past'])} "
            f"| {b['rollouts_caught']:.1%} | {_n(b['tokens_median'])} |"
        )


def _n(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["addmix3", "smollm2"])
    parser.add_argument("--smollm2", type=Path, help="its snapshot folder; made if not given")
    parser.add_argument("--groups", type=int, default=64, help="groups of each cheat on addmix3")
    parser.add_argument("--smollm2-groups", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            root = Path(folder) / name
            root.mkdir()
            if name == "addmix3":
                results[name] = attack(addmix3(root, 12), options.groups, 800)
            else:
                world = smollm2(root, options.smollm2, 8)
                results[name] = attack(world, options.smollm2_groups, 48)
            if not options.json:
                show(name, results[name])
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
