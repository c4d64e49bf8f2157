"""Continuous batching for one version: a row an answer, and a new answer where one has ended.

An answer that has ended leaves at once, and its row is free for another job. The prompts of new
jobs are read a bounded number of tokens a step, beside the answers that are being sampled, and not
for each free row alone: reading costs as much for one as for a few. When no job is left for the
rows that are free, and there are enough of them, the batch shrinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from echo_node.engines.base import Completion, Finished, Job
from echo_node.engines.cache import SlotCache
from echo_node.engines.decode import Decoder
from echo_node.engines.draw import Sampler, Stream, Way
from echo_node.engines.prefixes import Prefix, Prefixes
from echo_node.engines.reading import Reading

JOIN_SHARE = 8  # jobs join when one row in so many is free,
LONGEST_WAIT = 16  # or after so many steps
DROP_SHARE = 8  # the batch shrinks when one row in so many is free
CHUNK = {"cpu": 512}
CHUNK_ELSEWHERE = 4096


@dataclass
class _Row:
    """An answer. What is in the cache of it, with its prompt, lies in its last `span` columns."""

    number: int
    job: Job
    limit: int
    span: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Slots:
    """The jobs of one version: those that wait, those whose prompts are read, and the rows."""

    def __init__(self, decoder: Decoder, prefixes: Prefixes, version: int) -> None:
        self.sampled = 0
        self._decoder = decoder
        self._prefixes = prefixes
        self._version = version
        self._device = decoder.device
        self._chunk = CHUNK.get(self._device.type, CHUNK_ELSEWHERE)
        self._waiting: dict[int, Job] = {}
        self._reading: Reading | None = None
        self._rows: list[_Row | None] = []
        self._waited = 0
        self._empty()

    def _empty(self) -> None:
        """No row, and nothing kept for them."""
        self._rows = []
        self._cache: SlotCache | None = None
        self._sampler = Sampler(vocab_size=self._decoder.vocab_size, device=self._device)
        self._logits = torch.empty(0)
        self._positions = torch.empty(0)

    def __len__(self) -> int:
        reading = 0 if self._reading is None else len(self._reading.jobs)
        return len(self._waiting) + reading + self._busy

    @property
    def _busy(self) -> int:
        return sum(row is not None for row in self._rows)

    def submit(self, number: int, job: Job) -> None:
        """Take a job."""
        self._waiting[number] = job

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, those of them that are here."""
        for number in numbers:
            self._waiting.pop(number, None)
            if self._reading is not None:
                self._reading.jobs.pop(number, None)
        self._rows = [None if row and row.number in numbers else row for row in self._rows]

    @torch.inference_mode()
    def step(self, most: int) -> list[Finished]:
        """Read on, or sample one token for each row, or both; at most so many rows."""
        self._read(most)
        if not self._busy:
            return []
        done = self._take()
        if self._busy:
            self._shrink(most)
            self._forward()
        else:
            self._empty()
        return done

    # --- joining ----------------------------------------------------------------------------------

    def _read(self, most: int) -> None:
        if self._reading is None:
            free = most - self._busy
            self._waited += 1
            enough = min(len(self._waiting), max(1, most // JOIN_SHARE))
            late = self._waited >= LONGEST_WAIT or not self._busy
            if not self._waiting or free < 1 or (free < enough and not late):
                return
            chosen = list(self._waiting)[:free]
            jobs = {number: self._waiting.pop(number) for number in chosen}
            self._reading = Reading(self._decoder, self._prefixes, self._version, jobs)
            self._waited = 0
        self._reading.read(self._chunk)
        if self._reading.logits is not None:
            self._join(self._reading, self._reading.logits)
            self._reading = None

    def _join(self, reading: Reading, logits: torch.Tensor) -> None:
        """Give each job whose prompt is read a row."""
        free = deque(place for place, row in enumerate(self._rows) if row is None)
        places, which, streams, ways = [], [], [], []
        spans = reading.spans()
        for (number, job), prompt in zip(reading.order, reading.which, strict=True):
            if number not in reading.jobs:
                continue  # dropped meanwhile
            if not free:
                free.append(len(self._rows))
                self._rows.append(None)
            place = free.popleft()
            self._rows[place] = _Row(number, job, self._decoder.answer_limit(job), spans[prompt])
            places.append(place)
            which.append(prompt)
            streams.append(Stream(job.seed, job.index, job.start))
            ways.append(Way.of(job.sampling))
        if places:
            self._put(reading.cache, logits, places, which)
            self._sampler.replace(places, streams, ways)

    def _put(
        self, read: SlotCache, logits: torch.Tensor, places: Sequence[int], which: Sequence[int]
    ) -> None:
        """Copy what was read of prompts `which` into the rows `places`."""
        rows = torch.tensor(places, device=self._device)
        chosen = torch.tensor(which, device=self._device)
        if self._cache is None:
            self._cache = self._decoder.new_cache()
            self._cache.adopt(read, chosen)
            self._logits = logits[chosen]
            self._positions = torch.zeros(len(places), 1, dtype=torch.long, device=self._device)
        else:
            more = len(self._rows) - len(self._logits)
            if more > 0:
                self._select([*range(len(self._logits)), *[0] * more])
            self._cache.put(rows, read, chosen)
            self._logits[rows] = logits[chosen]
        lengths = [len(row.job.prompt) for place in places if (row := self._rows[place])]
        self._positions[rows, 0] = torch.tensor(lengths, device=self._device)

    def _select(self, rows: Sequence[int]) -> None:
        """Have these rows, in this order."""
        assert self._cache is not None
        chosen = torch.tensor(rows, device=self._device)
        self._cache.select(chosen)
        self._logits, self._positions = self._logits[chosen], self._positions[chosen]

    # --- sampling ---------------------------------------------------------------------------------

    def _take(self) -> list[Finished]:
        """Draw each row's next token; the answers that end with it."""
        drawn = self._sampler.draw(self._logits)
        logprobs = self._logits.float().log_softmax(-1).gather(-1, drawn[:, None])[:, 0]
        self._drawn = drawn
        done = []
        for place, (token, logprob) in enumerate(
            zip(drawn.tolist(), logprobs.tolist(), strict=True)
        ):
            row = self._rows[place]
            if row is None:
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            self.sampled += 1
            stopped = token in row.job.sampling.stop
            if stopped or len(row.tokens) == row.limit:
                done.append(self._end(place, row, "stop" if stopped else "length"))
        return done

    def _end(self, place: int, row: _Row, finish: Literal["stop", "length"]) -> Finished:
        if row.job.keep:
            self._keep(place, row)
        self._rows[place] = None
        return Finished(row.number, Completion(row.tokens, row.logprobs, finish))

    def _keep(self, place: int, row: _Row) -> None:
        """Keep what is in the cache of an answer that may go on: all but its last token."""
        assert self._cache is not None
        columns = self._cache.mask[place].nonzero()[:, 0]
        layers = [
            (keys[place][:, columns], values[place][:, columns])
            for keys, values in self._cache.layers()
        ]
        tokens = [*row.job.prompt, *row.tokens[:-1]]
        self._prefixes.put((self._version, row.job.seed, row.job.index), Prefix(tokens, layers))

    def _shrink(self, most: int) -> None:
        """Leave out free rows that no job waits for, if they are many."""
        free = len(self._rows) - self._busy
        wanted = len(self._waiting) + (0 if self._reading is None else len(self._reading.jobs))
        if len(self._rows) <= most and (free - wanted) * DROP_SHARE < len(self._rows):
            return
        rows = [place for place, row in enumerate(self._rows) if row is not None]
        chosen = torch.tensor(rows, device=self._device)
        self._select(rows)
        self._sampler.select(rows)
        self._drawn = self._drawn[chosen]
        self._rows = [self._rows[place] for place in rows]

    def _forward(self) -> None:
        """Feed the tokens that were drawn last."""
        assert self._cache is not None
        self._cache.reserve(0, 1)
        at = self._cache.columns
        at.mask[:, at.end] = True
        # a row that is free but still here must not run past the model's last position
        positions = self._positions.clamp(max=self._decoder.context - 1)
        self._logits = self._decoder.forward(self._drawn[:, None], positions, self._cache)
        self._positions += 1
        longest = 0
        for row in self._rows:
            if row is not None:
                row.span += 1
                longest = max(longest, row.span)
        self._cache.advance(1, longest)
