"""Text of turns and tokens of observations, the same on both sides, by a snapshot's tokenizer.json.

An observation's text is tokenised by itself, without special tokens: whatever it says, it cannot
look to the policy like the end of a turn or the beginning of another. What stands around it in the
chat template comes from the hub as token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from echo_p2p.dialogue import TokenReply
from echo_p2p.environments import environment
from echo_p2p.errors import DialogueError
from echo_p2p.wire import Turns, unpack_tokens

TextReply = Callable[[list[str]], str | None]
"""What the policy is told after its turns so far, or None at the end."""


class TurnText:
    """Between texts and tokens.

    Args:
        raw: a `tokenizers.Tokenizer`.
        stop: token ids that end a turn, and are no part of its text.
    """

    def __init__(self, raw: Any, stop: Collection[int]) -> None:
        self._raw = raw
        self._stop = frozenset(stop)

    @classmethod
    def load(cls, base: Path, stop: Collection[int]) -> TurnText:
        """Of a snapshot folder; DialogueError if its tokenizer cannot be read."""
        from tokenizers import Tokenizer  # heavy, and needed for multi-turn work alone

        try:
            return cls(Tokenizer.from_file(str(base / "tokenizer.json")), stop)
        except Exception as error:
            raise DialogueError(f"cannot read {base / 'tokenizer.json'}: {error}.") from error

    def answer(self, tokens: Sequence[int]) -> str:
        """Text of a turn, without its stop token or any other special one."""
        kept = [token for token in tokens if token not in self._stop]
        return str(self._raw.decode(kept, skip_special_tokens=True))

    def observation(self, text: str) -> list[int]:
        """Token ids of an observation's own text."""
        self._raw.encode_special_tokens = True
        try:
            return list(self._raw.encode(text, add_special_tokens=False).ids)
        finally:
            self._raw.encode_special_tokens = False


def wrapped(turns: Turns, observation: Sequence[int]) -> list[int]:
    """An observation's tokens with what stands around them in this dialogue."""
    return [*unpack_tokens(turns.before), *observation, *unpack_tokens(turns.after)]


def environment_says(turns: Turns) -> TextReply:
    """What the environment of a lease replies; DialogueError if it is unknown here."""
    reply = environment(turns.environment)
    try:
        state = json.loads(turns.state)
    except (ValueError, RecursionError) as error:
        raise DialogueError(f"the state of {turns.environment} is no JSON: {error}.") from error
    return lambda answers: reply(state, answers)


def in_tokens(reply: TextReply, turns: Turns, text: TurnText) -> TokenReply:
    """The same reply, from tokens to tokens."""

    def say(so_far: list[list[int]]) -> list[int] | None:
        said = reply([text.answer(turn) for turn in so_far])
        return None if said is None else wrapped(turns, text.observation(said))

    return say
