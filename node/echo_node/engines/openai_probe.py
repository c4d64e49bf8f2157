"""What a server must be able to do, tried before it is used; what is missing is named.

The last thing tried is the sampler. A hub derives rollouts again and bans nodes whose tokens were
drawn otherwise; so a volunteer is told now, and not by a ban.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from echo_node.engines.base import Job
from echo_node.engines.openai_client import Client, ServerRefusedError
from echo_node.engines.openai_proof import ENOUGH_BITS, Proof, are_raw, proof
from echo_node.engines.openai_wire import (
    TOP,
    Answer,
    Model,
    read_answer,
    read_models,
    request_for,
    score_request,
    scores_in,
    shown_in,
)
from echo_p2p.errors import EngineError
from echo_p2p.wire import Sampling

COMPLETIONS = "/v1/completions"
_ADAPTER_ROUTES = (
    ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),  # vLLM
    ("/load_lora_adapter", "/unload_lora_adapter"),  # SGLang
)
_REPLY_S = 120.0  # the first request may find a server that is still warming up
_TOKENS = 16
_MOST_ROUNDS = 12
_WAYS = (
    Sampling(temperature=1.0, max_new_tokens=_TOKENS, stop=(), top_k=TOP - 4),
    Sampling(temperature=2.0, max_new_tokens=_TOKENS, stop=(), top_k=TOP // 2),
    Sampling(temperature=1.0, max_new_tokens=_TOKENS, stop=()),
)
_FIX = "docs/engines.md says with which options vLLM serves a run."


@dataclass(frozen=True)
class Abilities:
    """What was found of a server that can do all."""

    model: str
    context: int
    load_route: str
    unload_route: str
    adapters: tuple[str, ...]
    """Names of adapters that it has already."""


def missing(what: str) -> EngineError:
    """The error for a server that cannot do something."""
    return EngineError(f"the server cannot be used: it lacks {what}.", fix=_FIX)


async def probe(client: Client, *, wanted: str, vocab_size: int, context: int) -> Abilities:
    """Try all that is needed; EngineError names what is missing.

    Args:
        wanted: the name of the base on the server; empty if it has only one.
        context: the longest that the base itself allows.
    """
    models = read_models(await client.get("/v1/models", deadline_s=_REPLY_S))
    base = _base_of(models, wanted)
    await _check_tokens(client, base.id, vocab_size)
    await _check_name(client)
    routes = await _adapter_routes(client)
    await _check_sampler(client, base.id, vocab_size)
    return Abilities(
        model=base.id,
        context=min(context, base.max_model_len or context),
        load_route=routes[0],
        unload_route=routes[1],
        adapters=tuple(model.id for model in models if model.parent),
    )


def _base_of(models: Iterable[Model], wanted: str) -> Model:
    bases = [model for model in models if not model.parent]
    found = [model for model in bases if wanted in ("", model.id)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(model.id for model in bases) or "none"
    if wanted:
        raise EngineError(f"the server has no model {wanted!r}: it has {names}.")
    raise EngineError(
        f"the server has not one model: it has {names}.", fix="Name one: http://host:port#name."
    )


async def _check_tokens(client: Client, model: str, vocab_size: int) -> None:
    prompt = [token % vocab_size for token in range(5, 13)]
    job = Job(prompt, 1, 0, replace(_WAYS[0], max_new_tokens=4))
    answer = await _ask(client, job, model, "token ids as a prompt")
    if answer.usage is not None and answer.usage.prompt_tokens not in (None, len(prompt)):
        raise missing(f"token ids as a prompt: {len(prompt)} became {answer.usage.prompt_tokens}")
    choice = answer.choices[0]
    if choice.token_ids is None:
        raise missing("token ids of its answers (`return_token_ids`)")
    if len(choice.token_ids) != 4:
        raise missing(f"answers as long as was asked for: 4 tokens became {len(choice.token_ids)}")
    if choice.logprobs is None or len(choice.logprobs.token_logprobs) != 4:
        raise missing("log-probabilities of the tokens it sampled (`logprobs`)")
    if len(shown_in(answer)) != 4 or not all(one.top for one in shown_in(answer)):
        raise missing("the likeliest tokens by id (`return_tokens_as_token_ids`)")
    try:
        raw = await client.post(
            COMPLETIONS, score_request(prompt, model=model), deadline_s=_REPLY_S
        )
        scores_in(read_answer(raw), len(prompt))
    except ServerRefusedError as error:
        raise missing(f"log-probabilities of a prompt (`echo`): {error.message}") from error


async def _ask(client: Client, job: Job, model: str, what: str) -> Answer:
    body = request_for(job, model=model, limit=job.sampling.max_new_tokens, logprobs=TOP)
    try:
        answer = read_answer(await client.post(COMPLETIONS, body, deadline_s=_REPLY_S))
    except ServerRefusedError as error:
        raise missing(f"{what}: {error.message}") from error
    if not answer.choices:
        raise missing(f"{what}: it gives no answer")
    return answer


async def _check_name(client: Client) -> None:
    """A server that answers for any name would answer for an adapter that it never loaded."""
    name = f"echo-no-such-model-{secrets.token_hex(4)}"
    body = request_for(Job([1], 1, 0, _WAYS[0]), model=name, limit=1)
    try:
        await client.post(COMPLETIONS, body, deadline_s=_REPLY_S)
    except ServerRefusedError:
        return
    raise missing("adapters by name: it answers for a model that it cannot have")


async def _adapter_routes(client: Client) -> tuple[str, str]:
    """Where adapters are loaded: tried with one that is not there, which must be refused."""
    name = f"echo-probe-{secrets.token_hex(4)}"
    body = {"lora_name": name, "lora_path": f"/nonexistent/{name}"}
    for load, unload in _ADAPTER_ROUTES:
        try:
            await client.post(load, body, deadline_s=_REPLY_S)
        except ServerRefusedError as error:
            if error.status == 405 or (error.status == 404 and name.encode() not in error.body):
                continue  # nothing there
            return load, unload
        raise missing("adapters that it reads: it took one that does not exist")
    raise missing("loading adapters at run time (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)")


async def _check_sampler(client: Client, model: str, vocab_size: int) -> None:
    """Sample with seeds that nobody else knows, until chance is out of the question."""
    total = Proof()
    for number in range(_MOST_ROUNDS):
        how = _WAYS[number % len(_WAYS)]
        prompt = [secrets.randbelow(vocab_size) for _ in range(1 + number)]
        job = Job(prompt, secrets.randbits(63), number, how, start=37 * number)
        answer = shown_in(await _ask(client, job, model, "sampling"))
        if not are_raw(answer):
            raise missing("raw log-probabilities (`--logprobs-mode raw_logprobs`)")
        total += proof(answer, job=job, vocab_size=vocab_size)
        if total.differing:
            raise missing(
                f"seeded sampling: {total.differing} of {total.decided} tokens are others than the "
                "seeds give (`--logits-processors`)"
            )
        if number + 1 >= len(_WAYS) and total.bits >= ENOUGH_BITS:
            return
    raise missing(
        f"answers uncertain enough to show how they are sampled: {total.bits:.0f} bits in "
        f"{total.decided} tokens"
    )
