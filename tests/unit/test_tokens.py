"""The tokenizer wrapper, against transformers and against bad snapshots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, processors

from echo_hub.models import addmix3_path
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError

TEMPLATE = (
    "{% for message in messages %}\n<u>{{ message.content }}</u>\n{% endfor %}\n"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A snapshot with a post-processor, a chat template and special tokens."""
    words = ["<s>", "</s>", "<u>", "</u>", "<a>", "one", "two", "<unk>"]
    raw = RawTokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    raw.add_special_tokens(["<s>", "</s>", "<u>", "</u>", "<a>"])
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    raw.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "config.json", vocab_size=8, max_position_embeddings=64, eos_token_id=1)
    write(
        tmp_path,
        "tokenizer_config.json",
        chat_template=TEMPLATE,
        eos_token={"content": "</s>"},
        bos_token="<s>",
    )
    return tmp_path


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def test_the_packaged_policy_reads_as_under_transformers() -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer.load(addmix3_path())
    theirs = AutoTokenizer.from_pretrained(addmix3_path())
    text = "237+682="
    ids = ours.encode(text, "raw")
    assert ids == theirs(text)["input_ids"]
    assert ours.eos == (theirs.eos_token_id,)
    assert ours.vocab_size == len(theirs)
    assert ours.decode([*ids, *ours.eos]) == text
    assert ours.unknown == theirs.unk_token_id


def test_what_the_vocabulary_lacks_is_shown(base: Path) -> None:
    ours = Tokenizer.load(addmix3_path())
    assert ours.unknown_in("2+3=", "raw") is None
    assert ours.unknown_in("2+é=É", "raw") == "é"
    assert Tokenizer.load(base).unknown_in("one three", "chat") == "three"
    write(base, "tokenizer_config.json", unk_token="<s>", eos_token="</s>")
    assert Tokenizer.load(base).unknown_in("one two", "raw") is None  # though it begins with <s>


def test_raw_and_chat(base: Path) -> None:
    tokenizer = Tokenizer.load(base)
    assert tokenizer.encode("one two", "raw") == [0, 5, 6]
    assert tokenizer.encode("one", "chat") == [2, 5, 3, 4]
    assert tokenizer.decode([5, 6, 1]) == "one two"
    assert tokenizer.decode([]) == ""
    assert (tokenizer.vocab_size, tokenizer.context, tokenizer.eos) == (8, 64, (1,))


def test_where_the_stop_tokens_come_from(base: Path) -> None:
    write(base, "generation_config.json", eos_token_id=[1, 3])
    assert Tokenizer.load(base).eos == (1, 3)
    (base / "generation_config.json").unlink()
    write(base, "config.json", vocab_size=8, max_position_embeddings=64)
    assert Tokenizer.load(base).eos == (1,)
    write(base, "tokenizer_config.json")
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        Tokenizer.load(base)


def test_a_template_in_its_own_file_goes_first(base: Path) -> None:
    (base / "chat_template.jinja").write_text("<a> {{ messages[0].content }}")
    assert Tokenizer.load(base).encode("two", "chat") == [4, 6]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no') }}",
        "{% for",
    ],
)
def test_a_template_cannot_do_harm(base: Path, template: str) -> None:
    (base / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="chat template cannot be used"):
        Tokenizer.load(base).encode("two", "chat")


def test_what_a_snapshot_lacks_is_said(base: Path) -> None:
    write(base, "tokenizer_config.json", eos_token="</s>")
    with pytest.raises(ConfigError, match="no chat template"):
        Tokenizer.load(base).encode("two", "chat")
    write(base, "config.json", eos_token_id=1, vocab_size=8)
    with pytest.raises(ConfigError, match="has no 'max_position_embeddings'"):
        Tokenizer.load(base)
    (base / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="not hold a JSON object"):
        Tokenizer.load(base)
    (base / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        Tokenizer.load(base)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    shutil.copytree(addmix3_path(), tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path / "base")
