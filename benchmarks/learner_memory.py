"""How much memory does an update take, and does the learner know beforehand?

    python benchmarks/learner_memory.py [--smollm2 FOLDER]

Each row is a process of its own, whose peak resident memory beyond what it had before (torch and
the model loaded) is what is shown. First the output layer of a vocabulary of 151,936, forward and
backward: the plain way (logits of all tokens, log-softmax, entropy) and ours, which has a few rows
of logits at a time. The plain way is measured on fewer tokens, since 8,192 of them would not fit
here, and multiplied. Then whole updates of a trainer, beside what `learner.fit` says they need.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN = 151_936, 64
MB = 1e6
ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("LoRA", {}, "float32"),
    ("LoRA, layers computed again", {"gradient_checkpointing": True}, "float32"),
    ("LoRA", {}, "bfloat16"),
    ("all weights", {"adapter": "none"}, "float32"),
]


def peak() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def head(way: str, tokens: int) -> dict[str, float]:
    """Memory in MB of the scores of so many tokens, forward and backward."""
    import torch

    from echo_hub.learner.heads import head_rows, token_scores

    torch.set_num_threads(1)
    layer = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    targets = torch.randint(VOCABULARY, (tokens,))
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    rows = head_rows(VOCABULARY, torch.device("cpu"))

    def scores(count: int) -> torch.Tensor:
        if way == "ours":
            found = token_scores(layer, hidden[:count], targets[:count], rows=rows)
            return found.logprobs.sum() - 0.01 * found.entropy.sum()
        logprobs = layer(hidden[:count]).log_softmax(-1)
        chosen = logprobs.gather(-1, targets[:count, None])
        return chosen.sum() + 0.01 * (logprobs.exp() * logprobs).sum()

    scores(2).backward()  # gradients of the weights are there from now on
    before = peak()
    scores(tokens).backward()
    return {"measured": peak() - before}


def update(base: str, tokens: int, learner: dict[str, Any], dtype: str) -> dict[str, float]:
    """Memory in MB of loading, and of one update in micro-batches of so many tokens."""
    import random

    import torch

    from echo_hub.config import RunConfig
    from echo_hub.learner.fit import need_of, shape_of
    from echo_hub.learner.heads import head_rows
    from echo_hub.learner.messages import TrainGroup, TrainRollout
    from echo_hub.learner.policy import Policy
    from echo_hub.learner.trainer import Trainer

    torch.set_num_threads(1)
    config = RunConfig.model_validate(
        {
            "run": {"id": "memory"},
            "base": {"path": base, "dtype": dtype},
            "sampling": {"max_new_tokens": 96},
            "learner": {"microbatch_tokens": tokens, **learner},
        }
    )
    shape = shape_of(Path(base))
    assert shape is not None
    before = peak()
    trainer = Trainer(Policy.load(Path(base), config.learner, dtype=dtype, seed=0), config)
    chance = random.Random(0)

    def rollout(reward: float) -> TrainRollout:
        answer = [chance.randrange(shape.vocabulary) for _ in range(96)]
        logprobs = trainer.policy.logprobs([([5] * 32, answer)]).detach().tolist()
        return TrainRollout(answer, logprobs, reward)

    groups = [
        TrainGroup(0, [5] * 32, [rollout(float(i % 2)) for i in range(4)])
        for _ in range(max(2, tokens // 512 + 1))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        trainer.train(groups, Path(scratch) / "v1")
    need = need_of(
        shape,
        config,
        longest=128,
        logits=head_rows(shape.vocabulary, torch.device("cpu")) * shape.vocabulary,
    )
    return {"measured": peak() - before, "estimated": (need.total - need.audit) / MB}


WAYS: dict[str, Callable[..., dict[str, float]]] = {"head": head, "update": update}


def in_a_process(what: str, *, tidy: bool = False, **arguments: Any) -> dict[str, float]:
    """The measurement in a process of its own. `tidy`: freed memory is given back."""
    command = [sys.executable, __file__, "--child", what, json.dumps(arguments)]
    more = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)} if tidy else {}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | more)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def heads() -> None:
    whole, tokens = 8192, 768
    print(f"output layer of {VOCABULARY} tokens; logits of {whole} alone are "
          f"{whole * VOCABULARY * 4 / MB:.0f} MB")  # fmt: skip
    plain = in_a_process("head", way="plain", tokens=tokens)["measured"]
    print(f"plain, {tokens} tokens: {plain:.0f} MB, so {plain * whole / tokens:.0f} MB for {whole}")
    ours = in_a_process("head", way="ours", tokens=whole)["measured"]
    print(f"ours, {whole} tokens: {ours:.0f} MB", flush=True)


def updates(name: str, base: Path, tokens: int) -> None:
    print(f"{name}, micro-batches of {tokens} tokens, MB: measured, estimated")
    for label, learner, dtype in [*ROWS, ("as it is: LoRA", {}, "float32")]:
        found = in_a_process(
            "update",
            tidy=not label.startswith("as it is"),
            base=str(base),
            tokens=tokens,
            learner=learner,
            dtype=dtype,
        )
        row = f"{label + ', ' + dtype:44} {found['measured']:8.0f} {found['estimated']:8.0f}"
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of the learner.")
    parser.add_argument("--updates", action="store_true", help="leave the output layer out")
    parser.add_argument("--smollm2", type=Path, help="folder made by echo_hub.models.smollm2")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(WAYS[args.child[0]](**json.loads(args.child[1]))))
        return
    if not args.updates:
        heads()
    from echo_hub.models import addmix3_path

    updates("addmix3", addmix3_path(), 8192)
    if args.smollm2:
        updates("SmolLM2-135M", args.smollm2, 1024)


if __name__ == "__main__":
    main()
