"""What is wrong with base, tokenizer or memory is found at the start, and said in a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio
from learner_support import make_config

from echo_hub.learner.messages import Failed, Start
from echo_hub.learner.process import Server
from echo_hub.ledger.ledger import Ledger
from echo_hub.models import addmix3_path
from echo_hub.publish.publisher import describe_base, same_base
from echo_hub.tokens import Tokenizer
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity

IDENTITY = Identity.from_seed(b"h" * 32)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(addmix3_path(), tmp_path / "base"))


def start(base: Path, ledger: Path) -> Artifact:
    """What a start of the hub does with the base."""

    async def main() -> Artifact:
        async with Ledger.open(ledger, "run") as opened:
            now = await describe_base(IDENTITY, "run", base, chunk_bytes=65536)
            return await same_base(opened, now, base)

    return trio.run(main)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_base_that_changed_since_the_run_began_is_refused(base: Path, tmp_path: Path, name: str):
    first = start(base, tmp_path / "ledger.sqlite")
    assert start(base, tmp_path / "ledger.sqlite").envelope == first.envelope
    with (base / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ConfigError, match="is not the one this run began with") as refused:
        start(base, tmp_path / "ledger.sqlite")
    assert "Put the old files back" in refused.value.fix


@pytest.mark.parametrize(
    ("file", "change"),
    [("config.json", {"vocab_size": 57}), ("generation_config.json", {"eos_token_id": [1, 58]})],
)
def test_a_tokenizer_of_another_model_is_refused(base: Path, file: str, change: dict[str, object]):
    Tokenizer.load(base)
    values = json.loads((base / file).read_text())
    (base / file).write_text(json.dumps({**values, **change}))
    with pytest.raises(ConfigError, match=r"the tokenizer in .* does not match the model"):
        Tokenizer.load(base)


def test_a_learner_that_cannot_fit_is_not_started(base: Path, tmp_path: Path):
    config = make_config(learner={"microbatch_tokens": 10**12})
    command = Start(
        config=config.model_dump_json(), base=str(base), checkpoint=None, out=str(tmp_path / "v0")
    )
    answer = Server().answer(command)
    assert isinstance(answer, Failed)
    assert answer.settings
    assert "this run's learner needs about" in answer.message
    assert answer.fix.startswith("Set learner.")
    assert not (tmp_path / "v0").exists()
