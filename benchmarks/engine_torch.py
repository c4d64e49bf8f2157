"""Is our torch engine as fast as `transformers.generate`? Tokens per second on the same work.

Both sample the same prompts, with the same adapter merged, in the same process, in turns; tokens
after an answer's end count for neither. `generate` is given what a user would give it: left
padding, an attention mask, merged weights, a key-value cache. Ours also derives every token from
its lease's seed and reports its log-probability, which `generate` is not asked to.

With mixed lengths, `generate` runs each padded batch to its longest answer. The steps that each
takes are counted too: their ratio is what filling free rows is worth where a step costs the same.

    python benchmarks/engine_torch.py [--model FOLDER] [--threads N] [--rows N] [--cpu-time]
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.wire import Sampling

PAD, EOS = 0, 1
GROUP = 8
ADDMIX3 = Path(__file__).parent.parent / "hub/echo_hub/models/addmix3"


def make_model(folder: Path) -> Path:
    """The shape of addmix3 with random weights: answers end anywhere."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=58, hidden_size=128, intermediate_size=352, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=2, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.002)
    adapted.save_pretrained(folder)
    return folder


def make_prompts(base: Path, count: int) -> list[list[int]]:
    """Sums of numbers of one to three digits: GROUP answers to each."""
    chance = random.Random(0)
    sums = [
        f"{chance.randrange(10 ** chance.randint(1, 3))}+{chance.randrange(1000)}="
        for _ in range(count // GROUP)
    ]
    if (base / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(base)
        prompts = [tokenizer.encode(text, add_special_tokens=False) for text in sums]
    else:
        prompts = [[4 + ord(letter) % 50 for letter in text] for text in sums]
    return [prompt for prompt in prompts for _ in range(GROUP)]


def ours(base: Path, adapter: Path, prompts: list[list[int]], limit: int) -> Callable[[], int]:
    engine = Driver(TorchEngine(max_sequences=len(prompts), device="cpu"))
    engine.load(base, "float32")
    engine.activate(1, adapter)
    sampling = Sampling(temperature=1.0, max_new_tokens=limit, stop=(EOS,))
    runs = iter(range(1, 1000))

    def run() -> int:
        seed = next(runs) << 32
        jobs = [
            Job(prompt, seed + i // GROUP, i % GROUP, sampling) for i, prompt in enumerate(prompts)
        ]
        return sum(len(answer.tokens) for answer in engine.generate(jobs))

    return run


def theirs(base: Path, adapter: Path, prompts: list[list[int]], limit: int) -> Callable[[], int]:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    @torch.inference_mode()
    def run() -> int:
        out = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=True,
            temperature=1.0, top_k=0, top_p=1.0, pad_token_id=PAD, eos_token_id=EOS,
        )  # fmt: skip
        answers = out[:, width:].tolist()
        return sum(a.index(EOS) + 1 if EOS in a else len(a) for a in answers)

    return run


def mixed_limits(count: int, most: int) -> list[int]:
    """Lengths as answers have them: most are short, some go to the limit (mean about a sixth)."""
    chance = random.Random(1)
    return [min(most, 1 + int(chance.expovariate(8 / most))) for _ in range(count)]


def ours_mixed(
    base: Path, adapter: Path, prompts: list[list[int]], limits: list[int], rows: int
) -> Callable[[], int]:
    engine = Driver(TorchEngine(max_sequences=rows, device="cpu"))
    engine.load(base, "float32")
    engine.activate(1, adapter)
    jobs = [
        Job(prompt, i, 0, Sampling(temperature=1.0, max_new_tokens=limit, stop=()))
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    return lambda: sum(len(answer.tokens) for answer in engine.generate(jobs))


def theirs_mixed(
    base: Path, adapter: Path, prompts: list[list[int]], limits: list[int], rows: int
) -> Callable[[], int]:
    """Batches of `rows` in order, each until its longest answer has ended."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()

    @torch.inference_mode()
    def run() -> int:
        for start in range(0, len(prompts), rows):
            part = prompts[start : start + rows]
            width = max(map(len, part))
            model.generate(
                input_ids=torch.tensor([[PAD] * (width - len(p)) + p for p in part]),
                attention_mask=torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part]),
                max_new_tokens=max(limits[start : start + rows]), do_sample=True, top_k=0,
                temperature=1.0, top_p=1.0, pad_token_id=PAD, eos_token_id=None,
            )  # fmt: skip
        return sum(limits)

    return run


def steps_saved(limits: Sequence[int], rows: int) -> float:
    """Steps of padded batches over those of rows that are filled as they get free."""
    padded = sum(max(limits[start : start + rows]) for start in range(0, len(limits), rows))
    free_at = [0] * rows
    for limit in limits:
        heapq.heapreplace(free_at, free_at[0] + limit)
    return padded / max(free_at)


def race(
    makers: Sequence[Callable[[], int]], rounds: int, clock: Callable[[], float]
) -> list[float]:
    """Median tokens/s of each, run in turns; the first round warms up."""
    rates: list[list[float]] = [[] for _ in makers]
    for turn in range(rounds + 1):
        for run, measured in zip(makers, rates, strict=True):
            start = clock()
            tokens = run()
            if turn:
                measured.append(tokens / (clock() - start))
    return [statistics.median(measured) for measured in rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a snapshot folder instead of the two shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--mixed-tokens", type=int, default=256, help="longest, of mixed lengths")
    parser.add_argument("--batches", type=int, default=8, help="of mixed lengths")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the process's own time: others are busy too"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        models = {"random": options.model or make_model(root / "random")}
        if options.model is None and ADDMIX3.is_dir():
            models["addmix3"] = ADDMIX3
        print(
            f"{options.threads} thread(s), up to {options.new_tokens} new tokens, "
            f"median of {options.rounds}"
        )
        for name, base in models.items():
            adapter = make_adapter(base, root / f"{name}-adapter")
            for rows in options.rows:
                prompts = make_prompts(base, rows)
                makers = (ours, theirs)
                runs = [make(base, adapter, prompts, options.new_tokens) for make in makers]
                mine, plain = race(runs, options.rounds, clock)
                print(
                    f"{name:8} {rows:4} rows: ours {mine:8.0f} tokens/s, "
                    f"transformers.generate {plain:8.0f}, ratio {mine / plain:.2f}"
                )
                many = make_prompts(base, options.batches * rows)
                work = (many, mixed_limits(len(many), options.mixed_tokens), rows)
                mixed = [make(base, adapter, *work) for make in (ours_mixed, theirs_mixed)]
                mine, plain = race(mixed, options.rounds, clock)
                print(
                    f"{name:8} {rows:4} rows, mixed lengths: ours {mine:8.0f} tokens/s, "
                    f"padded batches {plain:8.0f}, ratio {mine / plain:.2f}, "
                    f"of steps {steps_saved(work[1], rows):.2f}"
                )


if __name__ == "__main__":
    main()
