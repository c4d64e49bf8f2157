"""What we ask of vLLM itself: one engine core in this process, driven step by step.

Everything that depends on vLLM's own names is here and in `vllm_sampling`. The core is spoken to
below vLLM's output processor: token ids and raw log-probabilities are all that is wanted, so no
text, no per-token objects and no statistics are made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from echo_node.engines.base import Dtype, Job
from echo_node.engines.carried import carried
from echo_p2p.errors import EngineError

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # this is the engine's process already
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",  # versions come from us alone
}
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM makes room for."""


@dataclass(frozen=True)
class Options:
    """How much of the machine vLLM may have, and how it is divided.

    `memory_share` is of each card's memory, weights included; on a CPU, where there is no such
    share, `cache_bytes` are for keys and values. `context` 0 is as long as the base allows.
    `tensor_parallel` x `pipeline_parallel` cards are used. `versions` is how many may have answers
    running at once. `batch_tokens` are read by one forward pass at most. `threads` 0 and
    `batch_tokens` 0 leave vLLM's default.
    """

    max_sequences: int = 256
    context: int = 0
    memory_share: float = 0.9
    cache_bytes: int = 1 << 30
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    versions: int = 4
    batch_tokens: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Event:
    """News of one request: what was sampled, or the log-probabilities of its prompt.

    `reused` counts tokens of the prompt whose keys and values were at hand.
    """

    request: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length", "failed", ""]
    prompt_logprobs: Sequence[float] | None = None
    reused: int = 0


@dataclass(frozen=True)
class Facts:
    """What vLLM makes of a base."""

    device: str
    vocab_size: int
    context: int


def prepare(options: Options) -> None:
    """Set what vLLM reads from its environment; before it is first imported."""
    os.environ.update(SETTINGS)
    if options.threads:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ["OMP_NUM_THREADS"] = str(options.threads)


class Core:
    """One base in vLLM. With `rank` 0 it takes no adapters."""

    def __init__(self, base: Path, dtype: Dtype, options: Options, *, rank: int) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine

        config = make_config(base, dtype, options, rank=rank)
        runner = "SeededV2" if config.use_v2_model_runner else "SeededV1"
        config.model_config.logits_processors = [f"echo_node.engines.vllm_sampling:{runner}"]
        self._engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        self._client = self._engine.engine_core
        self._context: int = config.model_config.max_model_len

    def ask(self, name: str, job: Job, version: Any) -> None:
        """Take a job; `version` is what `add_adapter` or `salt` gave."""
        how = job.sampling
        self._add(
            name,
            job.prompt,
            version,
            max_tokens=min(how.max_new_tokens, self._context - len(job.prompt)),
            stop_token_ids=list(how.stop),
            logprobs=0,
            extra_args=carried(job),
        )

    def ask_score(self, name: str, tokens: Sequence[int], version: Any) -> None:
        """Ask for the log-probabilities of all tokens but the first: an event will have them."""
        self._add(name, tokens, version, max_tokens=1, prompt_logprobs=0)

    def _add(self, name: str, prompt: Sequence[int], version: Any, **sampling: Any) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        # greedy: the processor has drawn. End-of-sequence ids of the snapshot mean nothing here.
        params = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, **sampling)
        adapter = None if isinstance(version, str) else version
        self._client.add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=list(prompt),
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=adapter,
                cache_salt=version if isinstance(version, str) else None,
                data_parallel_rank=None,
            )
        )

    def step(self) -> list[Event]:
        """One round of the scheduler and the model."""
        return [_event(output) for output in self._client.get_output().outputs]

    def abort(self, names: Collection[str]) -> None:
        """Forget requests."""
        self._client.abort_requests(list(names))

    def add_adapter(self, name: str, number: int, folder: Path) -> Any:
        """Load an adapter under a name and a number that were never used before."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, str(folder))
        if not self._client.add_lora(request):
            raise EngineError(f"vLLM did not take the adapter in {folder}.")
        return request

    def remove_adapter(self, version: Any) -> None:
        """Unload an adapter of which no answer runs."""
        self._client.remove_lora(version.lora_int_id)

    def reload(self, folder: Path) -> None:
        """Make a whole model's weights those of the base; no answer may be running."""
        self._client.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self._client.collective_rpc(_pack_head)

    def close(self) -> None:
        """Release memory and processes."""
        self._client.shutdown()


def _pack_head(worker: Any) -> None:
    """Pack the weights of the head anew, in a worker that computes on a CPU.

    There each layer multiplies by a packed copy of its weights. vLLM renews that of a layer whose
    weights were loaded, and those of a head tied to the embedding never are.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        for layer in worker.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)


def make_config(base: Path, dtype: Dtype, options: Options, *, rank: int) -> Any:
    """vLLM's configuration for a base; EngineError says why it cannot serve it."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    on_cpu = bool(current_platform.is_cpu())
    adapters: dict[str, Any] = {}
    if rank:
        room = next((size for size in RANKS if size >= rank), None)
        if room is None:
            raise EngineError(f"an adapter of rank {rank} is larger than vLLM takes.")
        adapters = {
            "enable_lora": True,
            "max_lora_rank": room,
            "max_loras": options.versions,
            "max_cpu_loras": options.versions + 1,
        }
    try:
        return EngineArgs(
            model=str(base),
            runner="generate",
            dtype=dtype,
            load_format="safetensors",
            trust_remote_code=False,
            skip_tokenizer_init=True,
            generation_config="vllm",  # a snapshot's own must not change how tokens are drawn
            max_model_len=options.context or None,
            max_num_seqs=options.max_sequences,
            max_num_batched_tokens=options.batch_tokens or None,
            gpu_memory_utilization=options.memory_share,
            kv_cache_memory_bytes=options.cache_bytes if on_cpu else None,
            tensor_parallel_size=options.tensor_parallel,
            pipeline_parallel_size=options.pipeline_parallel,
            enable_prefix_caching=True,
            enforce_eager=on_cpu,
            logprobs_mode="raw_logprobs",
            seed=0,
            disable_log_stats=True,
            **adapters,
        ).create_engine_config()
    except Exception as error:  # a false config raises whatever it likes
        raise _cannot_serve(base, error) from error


def look_at(base: Path, dtype: Dtype, options: Options) -> tuple[Facts, Options]:
    """What vLLM makes of a base, before its weights are loaded, and options that fit it."""
    from vllm.platforms import current_platform
    from vllm.transformers_utils.config import get_config

    try:
        longest = _own_context(get_config(str(base), trust_remote_code=False))
    except Exception as error:  # as above
        raise _cannot_serve(base, error) from error
    context = min(options.context or longest, longest)
    options = replace(options, context=context)
    config = make_config(base, dtype, options, rank=0).model_config
    device = "cpu" if current_platform.is_cpu() else current_platform.get_device_name()
    return Facts(device, config.get_vocab_size(), config.max_model_len), options


def _cannot_serve(base: Path, error: Exception) -> EngineError:
    return EngineError(f"vLLM cannot serve the base model in {base}: {error}")


def _own_context(config: Any) -> int:
    longest: int = config.get_text_config().max_position_embeddings
    return longest


def _event(output: Any) -> Event:
    tokens = output.new_token_ids
    logprobs: list[float] = []
    if output.new_logprobs is not None:  # the sampled token is the first of each row
        logprobs = output.new_logprobs.logprobs[: len(tokens), 0].tolist()
    prompt = output.new_prompt_logprobs_tensors
    finish: Literal["stop", "length", "failed", ""] = ""
    if output.finish_reason is not None:
        said = str(output.finish_reason)
        finish = "stop" if said == "stop" else "length" if said == "length" else "failed"
    return Event(
        request=output.request_id,
        tokens=tokens,
        logprobs=logprobs,
        finish=finish,
        prompt_logprobs=None if prompt is None else prompt.logprobs[:, 0].tolist(),
        reused=output.prefill_stats.num_cached_tokens if output.prefill_stats else 0,
    )
