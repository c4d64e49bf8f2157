"""Reading the prompts of jobs that are about to join a batch, a bounded number of tokens at a time.

Jobs with one prompt share its reading: it runs once. What is kept of a prompt's beginning from an
earlier turn is put in front, and only the rest runs. Prompts of unequal length are padded on the
left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from echo_node.engines.base import Job
from echo_node.engines.cache import fill
from echo_node.engines.decode import Decoder
from echo_node.engines.prefixes import Prefix, Prefixes


class Reading:
    """Jobs whose prompts are being read. `order` are all of them, with the prompt of each in
    `which`; `jobs` those that were not dropped, by number."""

    def __init__(
        self, decoder: Decoder, prefixes: Prefixes, version: int, jobs: Mapping[int, Job]
    ) -> None:
        self.order = list(jobs.items())
        self.jobs = dict(jobs)
        self._decoder = decoder
        place: dict[tuple[int, ...], int] = {}
        self.which = [place.setdefault(tuple(job.prompt), len(place)) for job in jobs.values()]
        kept: list[Prefix | None] = [None for _ in place]
        for job, number in zip(jobs.values(), self.which, strict=True):
            one = prefixes.take((version, job.seed, job.index), job.prompt)
            if kept[number] is None and one is not None:
                kept[number] = one
                prefixes.reused += len(one.tokens)
        new = [
            prompt[len(one.tokens) if one else 0 :] for prompt, one in zip(place, kept, strict=True)
        ]
        prefixes.read += sum(map(len, new))
        tokens = _padded_left(new, decoder.device)
        self.cache = decoder.new_cache()
        fill(self.cache, kept, len(new), tokens.shape[1])
        at = self.cache.columns
        at.mask[:, at.end :] = tokens >= 0
        positions = at.mask.cumsum(1) - 1
        self._positions = positions.clamp(min=0)[:, at.end :]
        self._tokens = tokens.clamp(min=0)
        self._done = 0
        self.logits: torch.Tensor | None = None
        """After each prompt's last token: [prompts, vocabulary]; None while they are being read."""

    def spans(self) -> list[int]:
        """Columns from each prompt's first token to the end; padding may lie between."""
        spans: list[int] = (self.cache.width - self.cache.mask.int().argmax(1)).tolist()
        return spans

    def read(self, most: int) -> None:
        """Read on, about `most` tokens."""
        rows, columns = self._tokens.shape
        end = min(columns, self._done + max(1, most // rows))
        part = slice(self._done, end)
        logits = self._decoder.forward(self._tokens[:, part], self._positions[:, part], self.cache)
        at = self.cache.columns
        at.end += end - self._done
        self._done = end
        if end == columns:
            self.logits = logits


def _padded_left(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Rows of unequal length as one int64 tensor, filled up with -1 on the left."""
    width = max(map(len, rows))
    return torch.tensor(
        [[-1] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device
    )
