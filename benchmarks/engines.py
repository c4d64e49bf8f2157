"""What do our engines cost? Tokens per second of each beside the same library's own bare loop.

Both answer the same prompts with the same adapter in the same process, in turns; medians. The bare
loop samples at temperature 1 with raw log-probabilities, as we need them, but with the library's
own random numbers: it is what one would write who did not want to derive a token again. It knows no
versions, no jobs that come and go, and no driver.

An engine is measured where it is installed: run it with that environment's Python.

    python benchmarks/engines.py [--engine vllm torch] [--model FOLDER] [--batch 1 8 32]
    python benchmarks/engines.py --agreement 128 --model FOLDER
    python benchmarks/engines.py --sampler [--vocabulary 150000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import engines_sampler
from engine_torch import make_adapter

from echo_node.engines.base import Completion, Job
from echo_node.engines.choice import make_engine
from echo_node.engines.driver import Driver
from echo_p2p.wire import Sampling

ROOT = Path(__file__).parent.parent
ADDMIX3 = ROOT / "hub/echo_hub/models/addmix3"
PROMPT = 12
Run = Callable[[int], int]
"""Answers one batch with seeds from this number on; returns the tokens sampled."""


def prompts_of(batch: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(3, 50) for _ in range(PROMPT)] for _ in range(batch)]


def ours(name: str, base: Path, adapter: Path, batch: int, length: int) -> Run:
    driver = Driver(make_engine(name, max_sequences=batch, threads=0))
    driver.load(base, "float32")
    driver.activate(1, adapter)
    sampling = Sampling(temperature=1.0, max_new_tokens=length, stop=())
    prompts = prompts_of(batch)

    def run(seed: int) -> int:
        jobs = [Job(prompt, seed + i, i, sampling) for i, prompt in enumerate(prompts)]
        return sum(len(answer.tokens) for answer in driver.generate(jobs))

    return run


def bare_vllm(base: Path, adapter: Path, batch: int, length: int) -> Run:
    """`LLMEngine` as its documentation drives it."""
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(base), dtype="float32", skip_tokenizer_init=True, max_num_seqs=batch,
            enforce_eager=True, kv_cache_memory_bytes=1 << 30, generation_config="vllm",
            enable_lora=True, max_lora_rank=16, max_loras=4, disable_log_stats=True,
        )
    )  # fmt: skip
    version = LoRARequest("bare", 1, str(adapter))
    how = SamplingParams(
        temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    prompts = prompts_of(batch)

    def run(seed: int) -> int:
        for i, prompt in enumerate(prompts):
            name = f"{seed}-{i}"
            engine.add_request(
                name, TokensPrompt(prompt_token_ids=prompt), how, lora_request=version
            )
        tokens = 0
        while engine.has_unfinished_requests():
            tokens += sum(len(out.outputs[0].token_ids) for out in engine.step())
        return tokens

    return run


def bare_torch(base: Path, adapter: Path, batch: int, length: int) -> Run:
    """transformers with a merged adapter and its own cache, one token after another."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()
    prompts = torch.tensor(prompts_of(batch))

    @torch.inference_mode()
    def run(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        cache = DynamicCache(config=model.config)
        fed, tokens, logprobs = prompts, [], []
        for _ in range(length):
            out = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            known = out.logits[:, -1].float().log_softmax(-1)
            fed = torch.multinomial(known.exp(), 1, generator=generator)
            tokens.append(fed)
            logprobs.append(known.gather(-1, fed))
        answers = torch.cat(tokens, 1).tolist(), torch.cat(logprobs, 1).tolist()
        return sum(map(len, answers[0]))

    return run


BARE: dict[str, Callable[[Path, Path, int, int], Run]] = {"vllm": bare_vllm, "torch": bare_torch}
NEEDS = {"vllm": "vllm", "torch": "torch", "mlx": "mlx"}


def in_turns(runs: list[Run], rounds: int) -> Iterator[list[float]]:
    """Tokens per second of each run, round by round; the first round warms up."""
    for turn in range(rounds + 1):
        rates = []
        for run in runs:
            start = time.perf_counter()
            tokens = run((turn + 1) << 20)
            rates.append(tokens / (time.perf_counter() - start))
        if turn:
            yield rates


def measure(name: str, base: Path, adapter: Path, batch: int, length: int, rounds: int) -> None:
    runs = [ours(name, base, adapter, batch, length)]
    if name in BARE:
        runs.append(BARE[name](base, adapter, batch, length))
    rounds_of = list(zip(*in_turns(runs, rounds), strict=True))
    rate = statistics.median(rounds_of[0])
    line = f"{base.name:12} {name:6} batch {batch:3}: {rate:8.0f} tokens/s"
    if len(rounds_of) > 1:
        # of neighbours in time: the machine's own ups and downs fall on both
        shares = [bare / mine - 1 for mine, bare in zip(*rounds_of, strict=True)]
        line += f", bare {statistics.median(rounds_of[1]):8.0f}"
        line += f", we cost {100 * statistics.median(shares):+.1f} %"
    print(line, flush=True)


def agreement(base: Path, adapter: Path, count: int, length: int) -> None:
    """The same jobs through torch and vLLM: in float32 token by token, and vLLM in bfloat16.

    An answer that differs is compared up to its first other token: what follows is of another text.
    """
    sampling = Sampling(temperature=1.0, max_new_tokens=length, stop=())
    jobs = [Job(prompt, i, 0, sampling) for i, prompt in enumerate(prompts_of(count))]
    wanted: list[Completion] = []
    for name, dtype in (("torch", "float32"), ("vllm", "float32"), ("vllm", "bfloat16")):
        driver = Driver(make_engine(name, max_sequences=32, threads=0))
        driver.load(base, dtype)  # type: ignore[arg-type]
        driver.activate(1, adapter)
        found = driver.generate(jobs)
        driver.engine.close()
        if not wanted:
            wanted = found
            continue
        unequal, compared, gaps = 0, 0, [0.0]
        for mine, theirs in zip(found, wanted, strict=True):
            pairs = zip(mine.tokens, theirs.tokens, strict=True)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), length)
            unequal += same < length
            compared += same
            both = zip(mine.logprobs[:same], theirs.logprobs[:same], strict=True)
            gaps += [abs(a - b) for a, b in both]
        print(
            f"{base.name}: {name} in {dtype} against torch in float32: {unequal} of {count} "
            f"answers differ; {compared} tokens before the first other one, log-probabilities "
            f"apart by {statistics.mean(gaps):.1e} on average, {max(gaps):.1e} at most",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", nargs="+", choices=sorted(NEEDS), default=sorted(NEEDS))
    parser.add_argument("--model", type=Path, default=ADDMIX3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sampler", action="store_true", help="measure the sampler alone")
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument(
        "--agreement", type=int, metavar="N", help="N answers of vLLM compared with torch's"
    )
    options = parser.parse_args()
    if options.sampler:
        engines_sampler.measure(options.vocabulary)
        return
    if options.agreement:
        with tempfile.TemporaryDirectory() as folder:
            adapter = make_adapter(options.model, Path(folder) / "adapter")
            agreement(options.model, adapter, options.agreement, options.new_tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        adapter = make_adapter(options.model, Path(folder) / "adapter")
        for name in options.engine:
            if find_spec(NEEDS[name]) is None:
                print(f"{name} is not installed here.")
                continue
            for batch in options.batch:
                measure(name, options.model, adapter, batch, options.new_tokens, options.rounds)


if __name__ == "__main__":
    main()
