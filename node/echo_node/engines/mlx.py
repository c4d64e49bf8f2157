"""The engine of Apple's chips: mlx-lm's models, driven row by row; also on CPUs, for its tests.

Versions run side by side, a batch for each: a change of version stops nothing, since it only
replaces references to arrays (see `mlx_model`). Imported only where it is chosen.

Memory is shared with everything else on a Mac: MLX is told the limit, and no row is begun unless
the keys and values of all rows fit under it at their full length.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from echo_node.engines.base import Dtype, EngineInfo, Finished, Job
from echo_node.engines.mlx_batch import PREFILL_PROMPTS, Batch, Prefill, Row
from echo_node.engines.mlx_limits import MemoryPlan, Pace, memory_plan, rows_that_fit
from echo_node.engines.mlx_model import MlxModel, Policy
from echo_node.engines.prefixes import Prefixes
from echo_p2p.errors import EngineError

KEPT_BYTES = 1 << 30
"""Most keys and values that are kept from turn to turn."""

_MEMORY_WORDS = ("allocate", "memory", "buffer size")


class MlxEngine:
    """See `echo_node.engines.base.Engine`.

    Args:
        max_sequences: most answers at once.
        memory_bytes: most memory to use; None leaves room for the rest of the machine.
        duty: share of the time to work, so that a laptop does not heat up; can be set anew.
    """

    def __init__(
        self, *, max_sequences: int, memory_bytes: int | None = None, duty: float = 1.0
    ) -> None:
        self.duty = duty
        self.prefixes = Prefixes(KEPT_BYTES)
        self._most = self._max_sequences = max_sequences
        self._memory_bytes = memory_bytes
        self._memory: MemoryPlan | None = None
        self._model: MlxModel | None = None
        self._weight_bytes = 0
        self._policies: dict[int, Policy] = {}
        self._batches: dict[int, Batch] = {}
        self._waiting: dict[int, tuple[int, Row]] = {}  # by number: the version, the row
        self._prefill: tuple[int, Prefill] | None = None
        self._pace = Pace()
        self._sampled = 0

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        self._forget_all()
        self._policies.clear()
        self._model = None
        device = _device()
        self._memory = _limit_memory(self._memory_bytes, device)
        self._model = model = MlxModel(base, dtype)
        self._weight_bytes = mx.get_active_memory()
        return EngineInfo(
            name="mlx",
            device=str(device.get("device_name", "unknown")),
            dtype=dtype,
            vocab_size=model.vocab_size,
            max_sequences=self._max_sequences,
            context=model.context,
        )

    # --- versions -----------------------------------------------------------------------------

    def add(self, version: int, folder: Path) -> None:
        """Make a version available; on EngineError all is as before."""
        policy = self._loaded.read(folder)
        for other in self._policies.values():
            policy.check_like(other)
        self._policies[version] = policy

    def wear(self, version: int) -> None:
        """Compute as this version from now on; batches do this by themselves."""
        self._loaded.wear(self._policies[version])

    def remove(self, version: int) -> None:
        """Forget a version, of which no job runs."""
        self._policies.pop(version)
        self.prefixes.forget(version)
        self._batches.pop(version, None)
        self._loaded.wear(next(iter(self._policies.values()), None))
        mx.clear_cache()

    def score(self, version: int, tokens: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, given those before it."""
        self.wear(version)
        with _memory_errors():
            read = mx.array([tokens])
            logits = self._loaded.module(read)[0, :-1].astype(mx.float32)
            chosen = mx.take_along_axis(logits, read[0, 1:, None], axis=-1)[:, 0]
            scores: list[float] = (chosen - mx.logsumexp(logits, axis=-1)).tolist()
        return scores

    # --- jobs ---------------------------------------------------------------------------------

    def submit(self, number: int, version: int, job: Job) -> None:
        """Take a job of a version that was added."""
        self._waiting[number] = version, Row(number, job, self._loaded.context)

    @property
    def running(self) -> int:
        """Jobs that were submitted, and neither finished nor dropped."""
        return len(self._waiting) + sum(1 for _ in self._rows())

    @property
    def sampled(self) -> int:
        """Tokens sampled so far; never falls."""
        return self._sampled

    def resize(self, max_sequences: int) -> None:
        """Answer at most so many jobs at once from now on."""
        self._most = max(1, min(max_sequences, self._max_sequences))

    def step(self) -> list[Finished]:
        """One piece of a prompt, and one token of each row; the jobs that are done.

        EngineError or MemoryError: all running jobs are lost.
        """
        started = time.monotonic()
        try:
            with _memory_errors():
                self._read_prompts()
                finished = self._sample()
        except (EngineError, MemoryError):
            self._forget_all()
            raise
        time.sleep(self._pace.rest_s(time.monotonic() - started, self.duty))
        return finished

    def _read_prompts(self) -> None:
        if self._prefill is None:
            self._prefill = self._next_prefill()
        if self._prefill is None:
            return
        version, prefill = self._prefill
        self.wear(version)
        if prefill.advance():
            self._prefill = None
            batch = self._batches.get(version)
            if batch is None:
                model = self._loaded
                batch = self._batches[version] = Batch(
                    model.module, model.vocab_size, version=version, prefixes=self.prefixes
                )
            batch.join(prefill)

    def _next_prefill(self) -> tuple[int, Prefill] | None:
        """Waiting jobs of the oldest version that has any, as many as there is room for."""
        if not self._waiting:
            return None
        version = min(version for version, _ in self._waiting.values())
        sizes = [row.size for row in self._rows()]
        rows: list[Row] = []
        prompts: set[tuple[int, ...]] = set()
        for its_version, row in list(self._waiting.values()):
            if its_version != version:
                continue
            prompts.add(tuple(row.job.prompt))
            sizes.append(row.size)
            if len(sizes) > self._fitting(max(sizes)) or len(prompts) > PREFILL_PROMPTS:
                break
            rows.append(row)
        if not rows:
            return None
        for row in rows:
            del self._waiting[row.number]
        reading = Prefill(self._loaded.module, rows, version=version, prefixes=self.prefixes)
        return version, reading

    def _fitting(self, longest: int) -> int:
        if self._memory is None:
            return self._most
        free = self._memory.limit - self._weight_bytes - self.prefixes.size
        return min(self._most, rows_that_fit(free, longest, self._loaded.token_bytes))

    def _sample(self) -> list[Finished]:
        finished: list[Finished] = []
        for version in sorted(self._batches):
            batch = self._batches[version]
            self.wear(version)
            before = batch.sampled
            finished += batch.step()
            self._sampled += batch.sampled - before
            if not batch.rows:
                del self._batches[version]
        return finished

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, those of them that are running."""
        gone = set(numbers)
        for number in gone & self._waiting.keys():
            del self._waiting[number]
        if self._prefill is not None:
            version, prefill = self._prefill
            prefill.keep(_left(prefill.rows, gone))
            if not prefill.rows:
                self._prefill = None
        for version, batch in list(self._batches.items()):
            left = _left(batch.rows, gone)
            if len(left) < len(batch.rows):
                batch.keep(left)
            if not left:
                del self._batches[version]

    def close(self) -> None:
        """Release what is held; nothing else is called afterwards."""
        self._forget_all()
        self._policies.clear()
        self._model = None
        mx.clear_cache()

    # --- inside -------------------------------------------------------------------------------

    @property
    def _loaded(self) -> MlxModel:
        if self._model is None:
            raise EngineError("no base model is loaded.")
        return self._model

    def _rows(self) -> Iterator[Row]:
        if self._prefill is not None:
            yield from self._prefill[1].rows
        for batch in self._batches.values():
            yield from batch.rows

    def _forget_all(self) -> None:
        self._waiting.clear()
        self._batches.clear()
        self._prefill = None
        self.prefixes.clear()
        mx.clear_cache()


def _left(rows: Sequence[Row], gone: set[int]) -> list[int]:
    return [i for i, row in enumerate(rows) if row.number not in gone]


def _device() -> dict[str, Any]:
    """What MLX says of the device: another word for each chip, and none for some."""
    try:
        return dict(mx.device_info())
    except (RuntimeError, ValueError):
        return {}


def _limit_memory(wanted: int | None, device: dict[str, Any]) -> MemoryPlan | None:
    plan = memory_plan(
        wanted,
        recommended=device.get("max_recommended_working_set_size"),
        total=device.get("memory_size"),
    )
    if plan is not None:
        mx.set_memory_limit(plan.limit)
        mx.set_cache_limit(plan.cache)
        if plan.wired is not None:
            mx.set_wired_limit(plan.wired)
    return plan


@contextmanager
def _memory_errors() -> Iterator[None]:
    """MLX says with a RuntimeError that memory ran out: MemoryError; other ones: EngineError."""
    try:
        yield
    except RuntimeError as error:
        if any(word in str(error) for word in _MEMORY_WORDS):
            raise MemoryError(str(error)) from error
        raise EngineError(f"MLX failed: {error}") from error
