"""Snapshot folders with chat templates of several styles, for tests of turns. No weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_CORPUS = ["a number from 1 to 9: higher: lower: it is 12345", "user assistant system say play"] * 4

TEMPLATES: dict[str, tuple[str, str]] = {
    "chatml": (
        "<|im_end|>",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    "headers": (
        "<|eot|>",
        "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|body|>\n\n{{ m.content | trim }}"
        "<|eot|>{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}",
    ),
    "instructions": (
        "</s>",
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
        "{% else %}{{ raise_exception('no system messages') }}{% endif %}{% endfor %}",
    ),
    "plain": (  # its end of a message is no token of its own; and it hides what was thought
        "<end>",
        "{% for m in messages %}{{ m.role | capitalize }}: "
        "{{ m.content.split('</think>')[-1] }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}",
    ),
}
"""Of each style: the token that ends a turn, and the template."""

_SPECIAL = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "headers": ["<|begin|>", "<|head|>", "<|body|>", "<|eot|>"],
    "instructions": ["<s>", "</s>"],
    "plain": ["<end>"],
}
CONTEXT = 4096


def make_chat_base(folder: Path, style: str) -> Path:
    """A byte-level BPE tokenizer with some merges, and the template of that style."""
    stop, template = TEMPLATES[style]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=_SPECIAL[style],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_CORPUS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    raw.save(str(folder / "tokenizer.json"))
    config = {
        "vocab_size": raw.get_vocab_size(),
        "max_position_embeddings": CONTEXT,
        "eos_token_id": raw.token_to_id(stop),
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"eos_token": stop, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
