"""The base model's tokenizer, without transformers: text to token ids and back, stop tokens, sizes.

Reads a snapshot folder: tokenizer.json, config.json, and, where they exist, generation_config.json,
tokenizer_config.json and chat_template.jinja. A chat template is a program from the snapshot, so it
is rendered in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding
from tokenizers import Tokenizer as RawTokenizer

from echo_p2p.errors import ConfigError
from echo_p2p.text import TurnText

_SAID, _HEARD = "ASSISTANTSAID", "USERHEARD"  # no template says that itself


@dataclass(frozen=True)
class Tokenizer:
    """A snapshot's tokenizer and what its configuration says of it.

    `eos` are the ids that end an answer; `context` is the most positions the model has; `unknown`,
    if there is one, is the id of whatever the vocabulary lacks.
    """

    vocab_size: int
    context: int
    eos: tuple[int, ...]
    unknown: int | None
    _raw: RawTokenizer
    _chat_template: str | None
    _special: dict[str, str]

    @classmethod
    def load(cls, base: Path) -> Tokenizer:
        """Read a snapshot folder; ConfigError says what it lacks."""
        config = _read_json(base / "config.json")
        text_config = config.get("text_config", config)
        settings = _read_json(base / "tokenizer_config.json", optional=True)
        try:
            raw = RawTokenizer.from_file(str(base / "tokenizer.json"))
        except Exception as error:
            raise ConfigError(f"cannot read {base / 'tokenizer.json'}: {error}.") from error
        special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _token_text(settings.get(name))) is not None
        }
        generation = _read_json(base / "generation_config.json", optional=True)
        eos = _ids(generation.get("eos_token_id")) or _ids(text_config.get("eos_token_id"))
        if not eos and (token_id := raw.token_to_id(special.get("eos_token", ""))) is not None:
            eos = (token_id,)
        if not eos:
            raise ConfigError(f"{base} names no end-of-sequence token.")
        try:
            vocab_size = int(text_config["vocab_size"])
            context = int(text_config["max_position_embeddings"])
        except KeyError as error:
            raise ConfigError(f"{base / 'config.json'} has no {error}.") from error
        _check_vocabulary(base, raw, eos, vocab_size)
        # what the vocabulary itself falls back on; the settings often name a token of other use
        name = getattr(raw.model, "unk_token", special.get("unk_token"))
        unknown = raw.token_to_id(name) if name else None
        return cls(vocab_size, context, eos, unknown, raw, _chat_template(base, settings), special)

    def encode(self, text: str, template: Literal["raw", "chat"]) -> list[int]:
        """Token ids of a prompt: as it stands, or as a user's message in the chat template."""
        return list(self._encode(text, template)[1].ids)

    def unknown_in(self, text: str, template: Literal["raw", "chat"]) -> str | None:
        """The first piece of a prompt that the vocabulary lacks; None if it has them all."""
        source, encoding = self._encode(text, template)
        pieces = zip(encoding.ids, encoding.offsets, strict=True)
        return next((source[start:end] for i, (start, end) in pieces if i == self.unknown), None)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer, without its end-of-sequence or any other special token."""
        return self.turn_text.answer(ids)

    def text(self, ids: Sequence[int]) -> str:
        """Text of a prompt, special tokens by their names."""
        return str(self._raw.decode(list(ids), skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds to the one before it, special tokens by their names.

        A character that several tokens make together shows as U+FFFD in each of them.
        """
        alone: list[str] = self._raw.decode_batch([[one] for one in ids], skip_special_tokens=False)
        pairs = [list(pair) for pair in pairwise(ids)]
        both: list[str] = self._raw.decode_batch(pairs, skip_special_tokens=False)
        found = alone[:1]
        for before, own, together in zip(alone, alone[1:], both, strict=False):
            found.append(together[len(before) :] if together.startswith(before) else own)
        return found

    @cached_property
    def turn_text(self) -> TurnText:
        """Texts of turns and tokens of observations, as nodes have them."""
        return TurnText(self._raw, self.eos)

    def around_observation(self, template: Literal["raw", "chat"]) -> tuple[list[int], list[int]]:
        """Token ids that stand before and after an observation that follows a turn's stop token.

        In a chat template, those between an assistant's message and a user's, and after it. The
        template's own end of the assistant's message is left out: the policy has sampled it.
        """
        if template == "raw":
            return [], []
        messages = [("user", "QUESTION"), ("assistant", _SAID), ("user", _HEARD)]
        source = self._render([{"role": role, "content": text} for role, text in messages])
        before, heard, after = source.partition(_SAID)[2].partition(_HEARD)
        if not heard:
            raise ConfigError("the base model's chat template does not show several turns.")
        ids = list(self._raw.encode(before, add_special_tokens=False).ids)
        end = next((number for number, token in enumerate(ids) if token in self.eos), -1)
        return ids[end + 1 :], list(self._raw.encode(after, add_special_tokens=False).ids)

    def _encode(self, text: str, template: Literal["raw", "chat"]) -> tuple[str, Encoding]:
        if template == "raw":
            return text, self._raw.encode(text, add_special_tokens=True)
        source = self._render([{"role": "user", "content": text}])
        return source, self._raw.encode(source, add_special_tokens=False)

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._chat_template is None:
            raise ConfigError(
                "the base model has no chat template.", fix='Set task.template = "raw".'
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_exception
        try:
            return environment.from_string(self._chat_template).render(
                messages=messages,
                add_generation_prompt=True,
                **self._special,
            )
        except TemplateError as error:
            raise ConfigError(f"the base model's chat template cannot be used: {error}.") from error


def _check_vocabulary(base: Path, raw: RawTokenizer, eos: Sequence[int], vocab_size: int) -> None:
    """ConfigError if the tokenizer has tokens that the model does not know: it is another's."""
    highest = max(raw.get_vocab_size(with_added_tokens=True) - 1, *eos)
    if highest >= vocab_size:
        raise ConfigError(
            f"the tokenizer in {base} does not match the model: it has token id {highest}, and "
            f"config.json says vocab_size = {vocab_size}.",
            fix="Take tokenizer and weights from the same snapshot.",
        )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object.")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    """Token ids that configurations write as a number, a list, or null."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _token_text(value: Any) -> str | None:
    """A special token, which configurations write as text or as an object with `content`."""
    return value.get("content") if isinstance(value, dict) else value


def _chat_template(base: Path, settings: dict[str, Any]) -> str | None:
    path = base / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):  # several, by name
        value = next((one["template"] for one in value if one.get("name") == "default"), None)
    return value
