"""The same GRPO in our learner and in TRL's `GRPOTrainer`: what is learned, how fast, memory.

Both train the packaged `addmix3` co-located with its own sampling, on one thread, in float32: LoRA
r 16, alpha 32 on all linear layers; AdamW (fused), 1e-3, betas (.9, .99), no decay, constant; norm
clipped at 1; one step an update on 32 prompts x 8 answers of at most 34 tokens, the same prompts in
the same order; T = 1 from the whole distribution; Dr. GRPO's loss and advantages, clip .2, ceiling
4 on ratios that push down (TRL: `delta`); no KL. Micro-batches of 64 rollouts (ours: as many tokens
as 64 have). Each run is a process of its own, one after the other, ours and TRL's by turns.

    python benchmarks/parity.py [--updates 20] [--seeds 1,2,3] [--batch 64]

Set in TRL beyond that, since it is not ours or would slow it down: `scale_rewards="none"`,
`gradient_checkpointing=False`, no logging, no checkpoints, `shuffle_dataset=False`, no reference
model (`beta=0`), dropout off. Ours leaves out the rollouts that have no advantage, judges each
update, and writes a checkpoint with it; TRL does none of this.

`reward`: sampled accuracy on 512 held-out prompts by the same engine, mean of the evaluations after
16/20, 18/20 and 20/20 of the updates. `update`: CPU seconds of the forward and backward passes and
the step (and, ours, the checkpoint), sampling and scoring apart; median over updates. `tokens/s`:
sampled tokens of an update by that (all of them; `computed/s`: of those that went through the
model). `peak`: resident memory at most, and by how much it exceeds what was resident when the model
was loaded. The table has means of rewards and medians of the rest over seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GROUPS, SIZE, LIMIT, HELD_OUT = 32, 8, 34, 512
RATE, BETAS, CLIP, CEILING = 1e-3, (0.9, 0.99), 0.2, 4.0
RANK, ALPHA = 16, 32
_PROMPT = 8  # tokens of `123+456=`


class Task:
    """Prompts, rewards and the evaluation, shared by both sides."""

    def __init__(self, seed: int) -> None:
        from echo_hub.models import addmix3_path
        from echo_hub.tasks.addmix import AddMix
        from echo_hub.tokens import Tokenizer
        from echo_node.engines.driver import Driver
        from echo_node.engines.torch import TorchEngine
        from echo_p2p.wire import Sampling

        self.base = addmix3_path()
        self.task, self.tokenizer = AddMix(seed), Tokenizer.load(self.base)
        self.engine = Driver(TorchEngine(max_sequences=HELD_OUT, device="cpu"))
        self.engine.load(self.base, "float32")
        self.sampling = Sampling(
            temperature=1.0, max_new_tokens=LIMIT, stop=tuple(self.tokenizer.eos)
        )

    def prompts(self, split: Any, indices: Sequence[int]) -> list[Any]:
        return [self.task.prompt(split, index) for index in indices]

    def sample(
        self, version: int, adapter: Path, prompts: Sequence[Any], seeds: Sequence[int], count: int
    ) -> list[tuple[list[int], list[int], list[float], float]]:
        """(prompt, tokens, log-probabilities, reward) of `count` answers to each prompt."""
        from echo_node.engines.base import Job

        self.engine.activate(version, adapter)
        encoded = [self.tokenizer.encode(prompt.text, "raw") for prompt in prompts]
        jobs = [
            Job(prompt=encoded[i], seed=seeds[i], index=index, sampling=self.sampling)
            for i in range(len(prompts))
            for index in range(count)
        ]
        return [
            (
                list(jobs[i].prompt),
                done.tokens,
                done.logprobs,
                self.reward(prompts[i // count], done.tokens),
            )
            for i, done in enumerate(self.engine.generate(jobs))
        ]

    def reward(self, prompt: Any, tokens: Sequence[int]) -> float:
        return float(self.task.reward(prompt, self.tokenizer.decode(list(tokens))))

    def evaluate(self, number: int, adapter: Path) -> float:
        prompts = self.prompts("heldout", range(HELD_OUT))
        return statistics.mean(
            one[3] for one in self.sample(number, adapter, prompts, range(HELD_OUT), 1)
        )


def resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def evaluated(updates: int) -> list[int]:
    return sorted({max(1, updates * share // 20) for share in (16, 18, 20)})


def ours(seed: int, updates: int, folder: Path, batch: int) -> dict[str, Any]:
    from echo_hub.config import RunConfig
    from echo_hub.learner.messages import TrainGroup, TrainRollout
    from echo_hub.learner.policy import Policy
    from echo_hub.learner.trainer import Trainer

    config = RunConfig.model_validate(
        {
            "run": {"id": "parity", "mode": "sequential", "seed": seed},
            "sampling": {"max_new_tokens": LIMIT, "group_size": SIZE},
            "learner": {
                "learning_rate": RATE, "betas": BETAS, "clip": (CLIP, CLIP), "rank": RANK,
                "alpha": ALPHA, "ratio_ceiling": CEILING, "groups_per_update": GROUPS,
                "microbatch_tokens": batch * (_PROMPT + LIMIT),
            },
        }
    )  # fmt: skip
    task = Task(seed)
    policy = Policy.load(task.base, config.learner, dtype="float32", seed=seed)
    trainer = Trainer(policy, config)
    trainer.save(folder / "v0")
    loaded = resident_mb()
    spent, tokens, computed, rewards = [], [], [], []
    for version in range(updates):
        prompts = task.prompts("train", range(version * GROUPS, (version + 1) * GROUPS))
        seeds = [hash((seed, version, i)) % 2**62 for i in range(GROUPS)]
        done = task.sample(version, folder / f"v{version}" / "adapter", prompts, seeds, SIZE)
        groups = [
            TrainGroup(
                version,
                done[i][0],
                [TrainRollout(*rollout[1:]) for rollout in done[i : i + SIZE]],
            )
            for i in range(0, len(done), SIZE)
        ]
        started = time.process_time()
        trainer.train(groups, folder / f"v{version + 1}")
        spent.append(time.process_time() - started)
        tokens.append(sum(len(one[1]) for one in done))
        kept = [g for g in groups if len({r.reward for r in g.rollouts}) > 1]
        computed.append(sum(len(r.tokens) for g in kept for r in g.rollouts))
        if version + 1 in evaluated(updates):
            adapter = folder / f"v{version + 1}" / "adapter"
            rewards.append(task.evaluate(version + 1, adapter))
    return _result(rewards, spent, tokens, computed, loaded)


def theirs(seed: int, updates: int, folder: Path, batch: int) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from echo_hub.config.adapter import LINEAR_LAYERS

    task = Task(seed)
    prompts = task.prompts("train", range(updates * GROUPS))
    tokenizer = AutoTokenizer.from_pretrained(task.base)
    spent, tokens, rewards = [], [], []

    def reward(
        prompts: list[str], completion_ids: list[list[int]], index: list[int], **_: Any
    ) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [
            task.reward(asked[number], answer)
            for number, answer in zip(index, completion_ids, strict=True)
        ]

    asked = prompts

    class Timed(GRPOTrainer):
        sampling = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            started = time.process_time()
            made = super()._generate_and_score_completions(inputs)
            type(self).sampling += time.process_time() - started
            return made

    class Watch(TrainerCallback):
        began = (0.0, 0.0)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = (time.process_time(), Timed.sampling)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            whole = time.process_time() - self.began[0]
            spent.append(whole - (Timed.sampling - self.began[1]))
            if state.global_step in evaluated(updates):
                adapter = folder / f"t{state.global_step}"
                trainer.model.save_pretrained(adapter)
                rewards.append(task.evaluate(state.global_step, adapter))

    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(task.base, dtype=torch.float32),
        reward_funcs=reward,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": prompt.text, "index": i} for i, prompt in enumerate(prompts)]
        ),
        peft_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(LINEAR_LAYERS),
            task_type="CAUSAL_LM",
        ),
        callbacks=[Watch()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=False, fp16=False, seed=seed,
            per_device_train_batch_size=batch, gradient_accumulation_steps=GROUPS * SIZE // batch,
            num_generations=SIZE, max_completion_length=LIMIT, max_steps=updates,
            learning_rate=RATE, lr_scheduler_type="constant", adam_beta1=BETAS[0],
            adam_beta2=BETAS[1], weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
            loss_type="dr_grpo", scale_rewards="none", beta=0.0, epsilon=CLIP, delta=CEILING,
            temperature=1.0, top_k=0, top_p=1.0, disable_dropout=True, shuffle_dataset=False,
            gradient_checkpointing=False, logging_strategy="no", save_strategy="no",
            report_to="none", disable_tqdm=True,
        ),
    )  # fmt: skip
    loaded = resident_mb()
    trainer.train()
    return _result(rewards, spent, tokens, tokens, loaded)


def _result(
    rewards: list[float],
    spent: list[float],
    tokens: list[int],
    computed: list[int],
    loaded: float,
) -> dict[str, Any]:
    assert len(spent) == len(tokens) == len(computed)
    peak = resident_mb()
    return {
        "reward": statistics.mean(rewards),
        "update_s": statistics.median(spent),
        "tokens_s": statistics.median(t / s for t, s in zip(tokens, spent, strict=True)),
        "computed_s": statistics.median(c / s for c, s in zip(computed, spent, strict=True)),
        "peak_mb": peak,
        "beyond_mb": peak - loaded,
    }


def run(side: str, seed: int, updates: int, batch: int) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--seeds", str(seed)]
    command += ["--updates", str(updates), "--batch", str(batch)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({"side": side, "seed": seed, **result}), file=sys.stderr, flush=True)
    return result


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["| | reward | update, CPU s | tokens/s | computed/s | peak MB (beyond loaded) |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for side, runs in results.items():
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        rewards = " ".join(f"{one['reward']:.3f}"[1:] for one in runs)
        mean = statistics.mean(one["reward"] for one in runs)
        lines.append(
            f"| {side} | {mean:.3f} ({rewards}) | {middle['update_s']:.2f} "
            f"| {middle['tokens_s']:,.0f} | {middle['computed_s']:,.0f} "
            f"| {middle['peak_mb']:.0f} ({middle['beyond_mb']:.0f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", choices=("ours", "TRL"), help="one run, in this process")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if args.side is None:
        results: dict[str, list[dict[str, Any]]] = {"ours": [], "TRL": []}
        for seed in seeds:
            for side, runs in results.items():
                runs.append(run(side, seed, args.updates, args.batch))
        print(table(results))
        return
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.side == "ours":
            result = ours(seeds[0], args.updates, Path(folder), args.batch)
        else:
            result = theirs(seeds[0], args.updates, Path(folder), args.batch)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
