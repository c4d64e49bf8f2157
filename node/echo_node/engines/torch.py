"""The engine that runs anywhere: transformers with PEFT adapters, merged, or with whole models.

The base is loaded from safetensors only, without any code of its own. A version becomes active
only if a forward pass with it is finite; otherwise the last good one is back before the error is
raised.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from echo_node.engines.adapter import Adapter, Merger, Version
from echo_node.engines.base import Dtype, EngineInfo, Finished, Job, next_version
from echo_node.engines.decode import Decoder
from echo_node.engines.prefixes import Prefixes
from echo_node.engines.slots import Slots
from echo_node.engines.snapshot import check_base
from echo_node.engines.whole import Replacer, read_version
from echo_p2p.errors import EngineError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KEPT_BYTES = 1 << 30
SCORED_AT_ONCE = 64


class TorchEngine:
    """See `echo_node.engines.base.Engine`.

    Args:
        max_sequences: most answers in one batch; more jobs are answered in several.
        device: a torch device; by default CUDA (which ROCm's torch calls its own, too), then
            Apple's MPS, else the CPU.
        memory_share: most of a card's memory that torch may allocate; None is no limit.
        kept_bytes: most keys and values that are kept from turn to turn.
    """

    def __init__(
        self,
        *,
        max_sequences: int,
        device: str | None = None,
        kept_bytes: int = KEPT_BYTES,
        memory_share: float | None = None,
    ) -> None:
        self.prefixes = Prefixes(kept_bytes)
        self.sampled = 0
        self._most = self._max_sequences = max_sequences
        self._device = torch.device(device or best_device())
        self._memory_share = memory_share
        self._model: Any = None
        self._decoder: Decoder | None = None
        self._merger: Merger | Replacer | None = None  # by what the first version was
        self._versions: dict[int, Version] = {}
        self._merged: int | None = None
        self._slots: dict[int, Slots] = {}

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        check_base(base)
        self._limit_memory()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=_DTYPES[dtype],
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation="sdpa",  # never one that the snapshot names
            )
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a false config raises whatever it likes
            raise EngineError(f"cannot load the base model in {base}: {error}") from error
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._decoder = Decoder(self._model)
        return EngineInfo(
            name="torch",
            device=str(self._device),
            dtype=dtype,
            vocab_size=self._decoder.vocab_size,
            max_sequences=self._max_sequences,
            context=self._decoder.context,
        )

    def _limit_memory(self) -> None:
        if self._memory_share is None:
            return
        if self._device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(self._memory_share, self._device)
        elif self._device.type == "mps":  # a share of what Apple recommends as the most
            torch.mps.set_per_process_memory_fraction(self._memory_share)

    def add(self, version: int, folder: Path) -> None:
        """Read and check a version; EngineError says why it is not used."""
        candidate = read_version(folder)
        merger = self._merger or _merger_for(self._model, candidate)
        merger.check(candidate)
        assert self._decoder is not None
        self._merger, self._versions[version] = merger, candidate
        self._slots[version] = Slots(self._decoder, self.prefixes, version)

    def remove(self, version: int) -> None:
        """Forget a version."""
        del self._versions[version], self._slots[version]
        self.prefixes.forget(version)
        if self._merged == version:
            self._merged = None
        if not self._versions and self._merger is not None:
            self._merger.restore()
            self._merger = None

    def _use(self, version: int) -> None:
        """Make the model's weights this version's."""
        if self._merged != version:
            assert self._merger is not None
            self._merged = None
            self._merger.merge(self._versions[version])
            self._merged = version

    @torch.inference_mode()
    def score(self, version: int, tokens: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first."""
        self._use(version)
        assert self._decoder is not None
        ids = torch.tensor([list(tokens)], device=self._device)
        positions = torch.arange(len(tokens), device=self._device)[None]
        cache = self._decoder.new_cache()
        cache.begin(1, len(tokens))
        found: list[float] = []
        for start in range(0, len(tokens) - 1, SCORED_AT_ONCE):  # a whole text's logits are large
            end = min(start + SCORED_AT_ONCE, len(tokens) - 1)
            part = (slice(None), slice(start, end))
            cache.columns.mask[part] = True
            logits = self._decoder.logits(ids[part], positions[part], cache, end - start)
            cache.columns.end = end
            following = ids[0, start + 1 : end + 1, None]
            found += logits[0].float().log_softmax(-1).gather(-1, following)[:, 0].tolist()
        return found

    def submit(self, number: int, version: int, job: Job) -> None:
        """Take a job."""
        self._slots[version].submit(number, job)

    def step(self) -> list[Finished]:
        """One token more for each answer of the version that is worked on."""
        version = next_version([number for number, slots in self._slots.items() if slots], None)
        if version is None:
            return []
        self._use(version)
        before = self._slots[version].sampled
        done = self._slots[version].step(self._max_sequences)
        self.sampled += self._slots[version].sampled - before
        return done

    @property
    def running(self) -> int:
        """Jobs that are not done."""
        return sum(map(len, self._slots.values()))

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs."""
        for slots in self._slots.values():
            slots.drop(numbers)

    def resize(self, max_sequences: int) -> None:
        """Answer at most so many at once."""
        self._max_sequences = min(max_sequences, self._most)

    def close(self) -> None:
        """Release the model and all that was computed."""
        self.prefixes.clear()
        self._slots.clear()
        self._versions.clear()
        self._model = self._decoder = self._merger = self._merged = None


def best_device() -> str:
    """The torch device to compute on, by what this build of torch finds."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _merger_for(model: torch.nn.Module, version: Version) -> Merger | Replacer:
    return Merger(model, version.shape) if isinstance(version, Adapter) else Replacer(model)
