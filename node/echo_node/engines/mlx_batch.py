"""Continuous batching in MLX: rows join when their prompt is read, and leave when they end.

Rows are of one version. The next tokens are being computed while the last ones are looked at, so
the device never waits for Python; a row that ends has then been computed one token too far, and
that token is not looked at. Answers to one prompt share its prefill.

It stands on mlx-lm's models and batched caches, and not on its `BatchGenerator`: that one hands
its sampler log-probabilities in the model's precision, and does not say which rows they are of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from echo_node.engines.base import Completion, Finished, Job
from echo_node.engines.mlx_sampling import Drawer
from echo_node.engines.prefixes import Prefix, Prefixes, Stream
from echo_p2p.errors import EngineError

PREFILL_TOKENS = 2048
"""Tokens of prompts that are read in one round of work."""
PREFILL_PROMPTS = 16


class Row:
    """One answer, as far as it is known."""

    def __init__(self, number: int, job: Job, context: int) -> None:
        self.number = number
        self.job = job
        self.limit = min(job.sampling.max_new_tokens, context - len(job.prompt))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.drawn = 0  # tokens, one more than are known while one is being computed

    def stream(self, version: int) -> Stream:
        """Under what its keys and values are kept."""
        return version, self.job.seed, self.job.index

    @property
    def size(self) -> int:
        """Tokens it may have in the end, with its prompt."""
        return len(self.job.prompt) + self.limit

    def take(self, token: int, logprob: float) -> bool:
        """The next token is known; whether it was the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        return token in self.job.sampling.stop or len(self.tokens) >= self.limit

    @property
    def finished(self) -> Finished:
        """The row, when it is over."""
        stopped = self.tokens[-1] in self.job.sampling.stop
        answer = Completion(self.tokens, self.logprobs, "stop" if stopped else "length")
        return Finished(self.number, answer)


class Prefill:
    """The reading of the prompts of some rows, a piece at a time; the last token is left over.

    What is kept of a prompt's beginning from an earlier turn is put in front, and not read again.
    """

    def __init__(
        self, module: Any, rows: Sequence[Row], *, version: int, prefixes: Prefixes
    ) -> None:
        self.rows = list(rows)
        self._module = module
        number: dict[tuple[int, ...], int] = {}
        self._which = [number.setdefault(tuple(row.job.prompt), len(number)) for row in rows]
        kept: list[Prefix | None] = [None for _ in number]
        for row, which in zip(rows, self._which, strict=True):
            kept[which] = kept[which] or prefixes.take(row.stream(version), row.job.prompt)
        prompts = [
            prompt[len(one.tokens) if one else 0 : -1]
            for prompt, one in zip(number, kept, strict=True)
        ]
        prefixes.reused += sum(len(one.tokens) for one in kept if one)
        prefixes.read += sum(map(len, prompts))
        self._width = max(map(len, prompts))
        padding = [self._width - len(prompt) for prompt in prompts]
        self._padded = max(padding) > 0
        single = [_cache_of(module, one) for one in kept]
        self.cache = [layers[0].merge(layers) for layers in zip(*single, strict=True)]
        if self._padded:
            for layer in self.cache:
                layer.prepare(lengths=[len(p) for p in prompts], right_padding=padding)
        self._tokens = mx.array([[*p, *[0] * n] for p, n in zip(prompts, padding, strict=True)])
        self._at = 0

    def advance(self) -> bool:
        """Read the next piece; whether all is read."""
        piece = max(1, PREFILL_TOKENS // len(self._tokens))
        if self._at < self._width:
            self._module(self._tokens[:, self._at : self._at + piece], cache=self.cache)
            mx.eval([layer.state for layer in self.cache])
            self._at += piece
        if self._at < self._width:
            return False
        for layer in self.cache:
            if self._padded:
                layer.finalize()
            layer.filter(self._which)  # a copy for each row
        mx.eval([layer.state for layer in self.cache if layer.keys is not None])
        mx.clear_cache()
        return True

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.rows = [self.rows[i] for i in rows]
        self._which = [self._which[i] for i in rows]


def _cache_of(module: Any, kept: Prefix | None) -> list[Any]:
    cache: list[Any] = make_prompt_cache(module)
    if kept is not None:
        for layer, (keys, values) in zip(cache, kept.layers, strict=True):
            layer.state = keys[None], values[None], len(kept.tokens)
    return cache


class Batch:
    """The rows of one version that are being answered.

    Args:
        prefixes: gets the keys and values of rows that are done and may go on.
    """

    def __init__(self, module: Any, vocab_size: int, *, version: int, prefixes: Prefixes) -> None:
        self.rows: list[Row] = []
        self._version, self._prefixes = version, prefixes
        self.sampled = 0
        """Tokens that were looked at."""
        self._module = module
        self._drawer = Drawer(vocab_size)
        self._cache: list[Any] = []
        self._tokens = mx.zeros(0, dtype=mx.uint32)
        self._logprobs = mx.zeros(0)

    def join(self, prefill: Prefill) -> None:
        """Take rows whose prompts are read."""
        last = mx.array([row.job.prompt[-1] for row in prefill.rows], dtype=mx.uint32)
        self._tokens = mx.concatenate([self._tokens, last])
        self._logprobs = mx.concatenate([self._logprobs, mx.zeros(len(last))])
        if self.rows:
            for ours, theirs in zip(self._cache, prefill.cache, strict=True):
                ours.extend(theirs)
        else:
            self._cache = prefill.cache
        self.rows += prefill.rows
        self._drawer.begin(
            [(row.job.seed, row.job.index) for row in self.rows],
            [row.job.start + row.drawn for row in self.rows],
            [row.job.sampling for row in self.rows],
        )

    def step(self) -> list[Finished]:
        """Begin each row's next token, and look at the one before it; the rows that are done."""
        tokens, logprobs = self._tokens, self._logprobs
        known = [row.drawn > 0 for row in self.rows]
        if any(row.drawn < row.limit for row in self.rows):
            self._begin(tokens)
        done = []
        for i, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
            if not known[i]:
                continue
            self.sampled += 1
            if not math.isfinite(logprob):
                raise EngineError("the policy computes non-finite logits.")
            if self.rows[i].take(token, logprob):
                done.append(i)
        self._store([i for i in done if self.rows[i].job.keep])
        finished = [self.rows[i].finished for i in done]
        if done:
            self.keep([i for i in range(len(self.rows)) if i not in set(done)])
        return finished

    def _store(self, done: Sequence[int]) -> None:
        for i in done:
            row = self.rows[i]
            read = [*row.job.prompt, *row.tokens][: len(row.job.prompt) - 1 + row.drawn]
            single = [layer.extract(i) for layer in self._cache]
            prefix = Prefix(read, [(layer.keys[0], layer.values[0]) for layer in single])
            mx.eval(prefix.layers)
            self._prefixes.put(row.stream(self._version), prefix)

    def _begin(self, tokens: mx.array) -> None:
        logits = self._module(tokens[:, None], cache=self._cache)[:, -1].astype(mx.float32)
        self._tokens = self._drawer.draw(logits)
        chosen = mx.take_along_axis(logits, self._tokens[:, None], axis=-1)[:, 0]
        self._logprobs = chosen - mx.logsumexp(logits, axis=-1)
        mx.async_eval(self._tokens, self._logprobs)
        for row in self.rows:
            row.drawn += 1

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self.rows = [self.rows[i] for i in rows]
        if not rows:
            self._cache = []
            self._tokens, self._logprobs = self._tokens[:0], self._logprobs[:0]
            return
        chosen = mx.array(rows)
        for layer in self._cache:
            layer.filter(chosen)
        self._tokens, self._logprobs = self._tokens[chosen], self._logprobs[chosen]
        self._drawer.keep(rows)
