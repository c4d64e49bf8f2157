"""The engine that runs anywhere: transformers with PEFT adapters, merged, or with whole models.

The base is loaded from safetensors only, without any code of its own. A version becomes active
only if a forward pass with it is finite; otherwise the last good one is back before the error is
raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM

from echo_node.engines.adapter import Adapter, Merger, Version
from echo_node.engines.base import Completion, EngineInfo, Job
from echo_node.engines.decode import Decoder
from echo_node.engines.prefixes import Prefixes
from echo_node.engines.snapshot import check_base
from echo_node.engines.whole import Replacer, read_version
from echo_p2p.errors import EngineError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KEPT_BYTES = 1 << 30
_CANARY_TOKENS = 8


class TorchEngine:
    """See `echo_node.engines.base.Engine`.

    Args:
        max_sequences: most answers in one batch; more jobs are answered in several.
        device: a torch device; by default CUDA if there is one, else the CPU.
        kept_bytes: most keys and values that are kept from turn to turn.
    """

    def __init__(
        self, *, max_sequences: int, device: str | None = None, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.prefixes = Prefixes(kept_bytes)
        self._max_sequences = max_sequences
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._model: Any = None
        self._decoder: Decoder | None = None
        self._merger: Merger | Replacer | None = None  # by what the first version was
        self._active: Version | None = None

    def load(self, base: Path, dtype: Literal["float32", "bfloat16"]) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        check_base(base)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=_DTYPES[dtype],
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation="sdpa",  # never one that the snapshot names
            )
        except Exception as error:  # a false config raises whatever it likes
            raise EngineError(f"cannot load the base model in {base}: {error}") from error
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._decoder = Decoder(self._model, self.prefixes)
        self._merger = self._active = None
        return EngineInfo(
            name="torch",
            device=str(self._device),
            dtype=dtype,
            vocab_size=self._decoder.vocab_size,
            max_sequences=self._max_sequences,
        )

    def activate(self, version: int, adapter: Path) -> None:
        """Make a version's folder the active policy; on EngineError the last one stays."""
        if self._model is None:
            raise EngineError("no base model is loaded.")
        candidate = read_version(adapter)
        self.prefixes.clear()
        merger = self._merger or _merger_for(self._model, candidate)
        merger.check(candidate)
        merger.merge(candidate)
        if not self._canary():
            if self._active is None:
                merger.restore()
            else:
                merger.merge(self._active)
            raise EngineError(f"version {version} computes non-finite logits; it is not used.")
        self._merger, self._active = merger, candidate

    def generate(self, jobs: Sequence[Job]) -> list[Completion]:
        """Sample every job under the active version; results in the order of the jobs."""
        if self._decoder is None or self._active is None:
            raise EngineError("no policy version is active.")
        for job in jobs:
            _check(job, self._decoder)
        batches: dict[tuple[float, int, float], list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            how = job.sampling
            batches[how.temperature, how.top_k, how.top_p].append(number)
        answers: dict[int, Completion] = {}
        for numbers in batches.values():
            for start in range(0, len(numbers), self._max_sequences):
                part = numbers[start : start + self._max_sequences]
                try:
                    done = self._decoder.sample([jobs[number] for number in part])
                except RuntimeError as error:  # out of memory, mostly
                    self.prefixes.clear()
                    raise EngineError(f"cannot generate {len(part)} answers: {error}") from error
                answers.update(zip(part, done, strict=True))
        return [answers[number] for number in range(len(jobs))]

    @torch.inference_mode()
    def _canary(self) -> bool:
        assert self._decoder is not None
        count = min(_CANARY_TOKENS, self._decoder.vocab_size)
        tokens = torch.arange(count, device=self._device)[None]
        return bool(torch.isfinite(self._model(input_ids=tokens).logits).all())


def _merger_for(model: torch.nn.Module, version: Version) -> Merger | Replacer:
    return Merger(model, version.shape) if isinstance(version, Adapter) else Replacer(model)


def _check(job: Job, decoder: Decoder) -> None:
    if not job.prompt or not 0 <= min(job.prompt) <= max(job.prompt) < decoder.vocab_size:
        raise EngineError("a prompt is empty or has a token outside the vocabulary.")
    if decoder.answer_limit(job) < 1:
        raise EngineError(
            f"a prompt of {len(job.prompt)} tokens leaves no room in {decoder.context}."
        )
