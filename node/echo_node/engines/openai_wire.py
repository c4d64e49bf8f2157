"""What is asked of an OpenAI-compatible server, and what its answers must be. Pure functions.

A server is somebody else's program: an answer is read into these types or refused, and a token or
number in it is believed only within its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from echo_node.engines.base import Completion, Job
from echo_node.engines.carried import carried
from echo_node.engines.openai_proof import Shown
from echo_p2p.errors import EngineError

TOP = 20
"""Most log-probabilities that vLLM shows of a position unless it is told otherwise."""


class Logprobs(msgspec.Struct):
    """Of each token in an answer; of the prompt too if it was asked for."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct):
    """One answer, or the next piece of it."""

    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """What a server counted."""

    prompt_tokens: int | None = None


class Answer(msgspec.Struct):
    """A reply to a request for a completion, or a piece of one."""

    choices: list[Choice] = []
    usage: Usage | None = None


class Model(msgspec.Struct):
    """One name that a server answers to."""

    id: str
    parent: str | None = None
    max_model_len: int | None = None


class Models(msgspec.Struct):
    """All of them."""

    data: list[Model]


def read_answer(raw: bytes) -> Answer:
    """EngineError unless the bytes are a completion."""
    return _read(raw, Answer)


def read_models(raw: bytes) -> list[Model]:
    """EngineError unless the bytes are a list of models."""
    return _read(raw, Models).data


def request_for(
    job: Job, *, model: str, limit: int, logprobs: int = 0, **more: Any
) -> dict[str, Any]:
    """The body of a request for one answer; the seeded sampler's part is in `vllm_xargs`.

    The server decodes greedily, what our logits processor has made the likeliest token.
    """
    return {
        "model": model,
        "prompt": job.prompt,
        "max_tokens": limit,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop_token_ids": list(job.sampling.stop),
        "ignore_eos": True,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "logprobs": logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "vllm_xargs": carried(job),
        **more,
    }


def score_request(tokens: Sequence[int], *, model: str) -> dict[str, Any]:
    """The body of a request for the log-probabilities of a prompt."""
    return {
        "model": model,
        "prompt": list(tokens),
        "max_tokens": 0,
        "temperature": 0.0,
        "echo": True,
        "logprobs": 0,
        "add_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def scores_in(answer: Answer, count: int) -> list[float]:
    """Log-probabilities of `count` tokens but the first; EngineError if they are not there."""
    found = answer.choices[0].logprobs if answer.choices else None
    values = found.token_logprobs[1:count] if found else []
    if len(values) != count - 1 or any(value is None for value in values):
        raise EngineError("the server gives no log-probabilities of a prompt (`echo`).")
    return [float(value) for value in values if value is not None]


def shown_in(answer: Answer) -> list[Shown]:
    """The positions of an answer that was asked for with the likeliest tokens beside."""
    positions = []
    for choice in answer.choices[:1]:
        logprobs = choice.logprobs or Logprobs()
        tokens, values = choice.token_ids or [], logprobs.token_logprobs
        for token, value, top in zip(tokens, values, logprobs.top_logprobs or [], strict=False):
            likeliest = {}
            for name, logprob in (top or {}).items():
                prefix, _, number = name.partition(":")
                if prefix == "token_id" and number.isascii() and number.isdigit():
                    likeliest[int(number)] = logprob
            positions.append(Shown(token, -math.inf if value is None else value, likeliest))
    return positions


class Transcript:
    """One answer as its pieces come; EngineError as soon as it cannot be one."""

    def __init__(self, job: Job, *, limit: int, vocab_size: int) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self._stop = frozenset(job.sampling.stop)
        self._limit = limit
        self._vocab_size = vocab_size

    @property
    def over(self) -> bool:
        """Whether the answer has its last token."""
        return len(self.tokens) >= self._limit or bool(
            self.tokens and self.tokens[-1] in self._stop
        )

    def take(self, piece: Answer) -> int:
        """Add a piece; how many tokens it had."""
        count = 0
        for choice in piece.choices[:1]:
            tokens = choice.token_ids or []
            values = choice.logprobs.token_logprobs if choice.logprobs else []
            if len(tokens) != len(values):
                raise EngineError(
                    f"the server gives {len(values)} log-probabilities with {len(tokens)} tokens."
                )
            for token, value in zip(tokens, values, strict=True):
                if self.over:
                    raise EngineError("the server goes on after the end of an answer.")
                if not 0 <= token < self._vocab_size:
                    raise EngineError(f"the server gives a token {token} that the base has not.")
                if value is None or not math.isfinite(value) or value > 1e-3:
                    raise EngineError(f"the server gives a log-probability {value}.")
                self.tokens.append(token)
                self.logprobs.append(min(0.0, value))
            count += len(tokens)
        return count

    @property
    def completion(self) -> Completion:
        """The answer; EngineError if the server ended it before its end."""
        if not self.over:
            raise EngineError(
                f"the server ended an answer after {len(self.tokens)} of {self._limit} tokens."
            )
        stopped = self.tokens[-1] in self._stop
        return Completion(self.tokens, self.logprobs, "stop" if stopped else "length")


T = TypeVar("T", bound=msgspec.Struct)


def _read(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the server's answer is not what was asked for: {error}.") from error
