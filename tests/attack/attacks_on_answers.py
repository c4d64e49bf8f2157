"""Answers that are not well formed, and well-formed ones that the policy did not give."""

from __future__ import annotations

from collections.abc import Callable

from attack_registry import attack, lie
from attack_support import GROUP, LIMIT, Arena
from msgspec.structs import replace

from echo_hub.models import addmix3_path
from echo_hub.rollouts.checks import Code
from echo_hub.tokens import Tokenizer
from echo_p2p.wire import (
    Rollout,
    Submission,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)

TOKENIZER = Tokenizer.load(addmix3_path())
VOCAB = TOKENIZER.vocab_size
STOP = TOKENIZER.eos[0]


def group_of(count: int) -> None:
    def spoil(honest: Submission) -> Submission:
        return replace(honest, rollouts=(honest.rollouts * count)[:count])

    lie(f"group of {count}", Code.WRONG_GROUP_SIZE, spoil, rollouts=count)


for size in (0, GROUP - 1, GROUP + 1, 64):
    group_of(size)


def last(change: Callable[[Rollout], Rollout]) -> Callable[[Submission], Submission]:
    """Spoil the last answer of a group only."""

    def spoil(honest: Submission) -> Submission:
        *rest, final = honest.rollouts
        return replace(honest, rollouts=(*rest, change(final)))

    return spoil


def answer(rollout: Rollout, tokens: list[int], finish: str = "stop") -> Rollout:
    """Another answer, with log-probabilities that it might have."""
    logprobs = pack_logprobs([-0.5] * len(tokens))
    return replace(rollout, tokens=pack_tokens(tokens), logprobs=logprobs, finish=finish)


def changed(rollout: Rollout, at: int, token: int) -> Rollout:
    tokens = unpack_tokens(rollout.tokens)
    tokens[at] = token
    return replace(rollout, tokens=pack_tokens(tokens))


def logprob(value: float, at: int = 0) -> Callable[[Submission], Submission]:
    def change(rollout: Rollout) -> Rollout:
        values = unpack_logprobs(rollout.logprobs)
        values[at] = value
        return replace(rollout, logprobs=pack_logprobs(values))

    return last(change)


def without_stop(rollout: Rollout) -> Rollout:
    """The honest answer up to its stop token, said to have stopped there."""
    return answer(rollout, [token for token in unpack_tokens(rollout.tokens) if token != STOP])


def with_logprobs(rollout: Rollout, packed: bytes) -> Rollout:
    return replace(rollout, logprobs=packed)


def about_last(name: str, code: Code, change: Callable[[Rollout], Rollout]) -> None:
    lie(name, code, last(change))


about_last("no answer", Code.BAD_TOKENS, lambda one: answer(one, []))
about_last("answer too long", Code.BAD_TOKENS, lambda one: answer(one, [5] * LIMIT + [STOP]))
about_last("first id after the vocabulary", Code.BAD_TOKENS, lambda one: changed(one, 0, VOCAB))
about_last("id far off", Code.BAD_TOKENS, lambda one: changed(one, 0, 2**32 - 1))
about_last("half a token", Code.BAD_TOKENS, lambda one: replace(one, tokens=one.tokens + b"\0\0"))

about_last("no stop at the end", Code.BAD_FINISH, without_stop)
about_last("stop in the middle", Code.BAD_FINISH, lambda one: answer(one, [5, STOP, 5, STOP]))
about_last("two stops", Code.BAD_FINISH, lambda one: answer(one, [5, STOP, STOP]))
about_last(
    "ended early and said to be at the limit",
    Code.BAD_FINISH,
    lambda one: answer(one, [5, 5], finish="length"),
)
about_last(
    "stop at the limit and said not to be one",
    Code.BAD_FINISH,
    lambda one: answer(one, [5] * (LIMIT - 1) + [STOP], finish="length"),
)

# --- turns where there are none -----------------------------------------------------------------


def with_spans(*spans: tuple[int, int], tokens: list[int] | None = None) -> Callable[..., Rollout]:
    def change(rollout: Rollout) -> Rollout:
        made = answer(rollout, tokens or unpack_tokens(rollout.tokens))
        values = unpack_logprobs(made.logprobs)
        for start, end in spans:
            values[start:end] = [0.0] * len(values[start:end])
        return replace(made, logprobs=pack_logprobs(values), observed=spans)

    return change


about_last("all is observed", Code.BAD_OBSERVATION, with_spans((0, 4)))
about_last("observed beyond its end", Code.BAD_OBSERVATION, with_spans((2, 999)))
about_last("observed twice", Code.BAD_OBSERVATION, with_spans((1, 3), (2, 4)))
about_last("observed without a turn before", Code.BAD_FINISH, with_spans((1, 3)))
about_last(
    "turns of its own", Code.BAD_OBSERVATION, with_spans((2, 3), tokens=[5, STOP, 7, 5, STOP])
)
about_last(
    "log-probs of what is observed",
    Code.BAD_LOGPROBS,
    lambda one: replace(answer(one, [5, STOP, 7, 5, STOP]), observed=((2, 3),)),
)

about_last("log-prob too few", Code.BAD_LOGPROBS, lambda one: with_logprobs(one, one.logprobs[4:]))
about_last(
    "log-prob too many", Code.BAD_LOGPROBS, lambda one: with_logprobs(one, one.logprobs + bytes(4))
)
about_last("no log-probs", Code.BAD_LOGPROBS, lambda one: with_logprobs(one, b""))
about_last("half a log-prob", Code.BAD_LOGPROBS, lambda one: with_logprobs(one, one.logprobs[2:]))
for value in (float("nan"), float("inf"), float("-inf"), 0.5, -1000.0):
    lie(f"log-prob {value}", Code.BAD_LOGPROBS, logprob(value))
lie("log-prob nan at the end", Code.BAD_LOGPROBS, logprob(float("nan"), at=-1))

# --- what only the audit can see ----------------------------------------------------------------


def another_token(rollout: Rollout) -> Rollout:
    """One digit of the answer is another: well formed, and not what the policy drew."""
    first = unpack_tokens(rollout.tokens)[0]
    digits = [token for token in range(VOCAB) if TOKENIZER.decode([token]).isdigit()]
    return changed(rollout, 0, next(token for token in digits if token != first))


def logprobs_made_up(honest: Submission) -> Submission:
    return replace(
        honest,
        rollouts=tuple(answer(one, unpack_tokens(one.tokens)) for one in honest.rollouts),
    )


def a_little_off(rollout: Rollout) -> Rollout:
    values = unpack_logprobs(rollout.logprobs)
    values[0] -= 0.05
    return replace(rollout, logprobs=pack_logprobs(values))


lie("token changed before signing", Code.AUDIT_MARGIN, last(another_token))
lie("log-probs made up", Code.AUDIT_LOGPROB, logprobs_made_up)
lie("one log-prob a little off", Code.AUDIT_LOGPROB, last(a_little_off))


@attack("audit_margin")
async def right_answer_written_by_hand(arena: Arena) -> list[str]:
    (lease,) = await arena.attacker.leases(1)
    (honest,) = await arena.answers([lease])
    a, b = TOKENIZER.decode(unpack_tokens(lease.prompt)).rstrip("=").split("+")
    tokens = [*TOKENIZER.encode(f">{int(a) + int(b)}", "raw"), STOP]
    by_hand = tuple(answer(one, tokens) for one in honest.rollouts)
    return [await arena.outcome(arena.attacker, replace(honest, rollouts=by_hand))]


@attack("audit_margin")
async def sampled_again_with_a_seed_of_its_own(arena: Arena) -> list[str]:
    for lease in await arena.attacker.leases(12):
        (honest,) = await arena.answers([lease])
        drawn = {rollout.tokens for rollout in honest.rollouts}
        for seed in range(10):
            (other,) = await arena.answers([replace(lease, seed=seed)])
            if drawn.isdisjoint(rollout.tokens for rollout in other.rollouts):
                return [await arena.outcome(arena.attacker, other)]
    raise AssertionError("every prompt is so easy that all answers to it are the same")
