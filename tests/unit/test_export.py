"""`echo-hub export`: what it writes, others load; it overwrites nothing; a card says whose work."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from learner_support import load_policy, make_config, scored, seeded_groups
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from echo_hub.cli import app
from echo_hub.commands.export import export_run
from echo_hub.commands.model_card import MOST_ROWS, CardFacts, Contributor, plain, render_card
from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig
from echo_hub.learner.trainer import Trainer
from echo_hub.ledger.history import UpdateRow
from echo_hub.ledger.ledger import Ledger
from echo_hub.models import addmix3_path
from echo_hub.models.make_addmix3 import encode
from echo_hub.paths import RunFolder
from echo_hub.rollouts.evaluation import Evaluated, estimate
from echo_hub.rollouts.leases import OpenLease
from echo_p2p.errors import ConfigError, LedgerError
from echo_p2p.identity import Identity, peer_id_of

NODE = Identity.from_seed(b"n" * 32).public_key
PAIRS = [(encode("123+456="), encode("3+6+0=9,2+5+0=7")), (encode("9+9="), encode("9+9+0=18"))]
DAY = 1_767_225_600.0
"""2026-01-01."""


def make_run(root: Path, **learner: Any) -> tuple[RunFolder, dict[int, torch.Tensor]]:
    """A run of two updates, and what each of its versions says of `PAIRS`."""
    config = make_config(
        run={"id": "my-run"}, learner={"learning_rate": 0.01, **learner}, task={"name": "addmix3"}
    )
    folder = RunFolder(root)
    root.mkdir()
    folder.config.write_text(render_config(config))
    trainer = Trainer(load_policy(config), config)
    logprobs = {}
    chance = random.Random(4)
    trainer.save(folder.checkpoint(0))
    for version in range(3):
        with torch.no_grad():
            logprobs[version] = trainer.policy.logprobs(PAIRS)
        if version < 2:
            groups = [scored(one, version) for one in seeded_groups(trainer.policy, chance, 4)]
            trainer.train(groups, folder.checkpoint(version + 1))
    trio.run(_fill_ledger, folder, config)
    return folder, logprobs


async def _fill_ledger(folder: RunFolder, config: RunConfig) -> None:
    now = iter([DAY, *[DAY + 86400.0 * n for n in range(40)]])
    async with Ledger.open(folder.ledger, config.run.id, clock=lambda: next(now)) as ledger:
        await ledger.begin()
        for version in (1, 2):
            lease = OpenLease(
                lease_id=bytes([version] * 16), node=NODE, split="train", index=version,
                group_size=8, seed=1, min_version=0, max_version=None, issued_at=1.0,
                expires_at=2.0,
            )  # fmt: skip
            await ledger.add_leases([lease])
            group = await ledger.add_group(
                lease, version=version - 1, rollouts=8, tokens=40, envelope=b"e"
            )
            await ledger.set_scored(group, [1.0] * 8)
            await ledger.commit_update(version, [group], {"reward_mean": 0.25 * version})
        await ledger.record_evaluation(Evaluated(2, estimate([1.0] * 10 + [0.0] * 6), {}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[int, torch.Tensor]]:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@torch.no_grad()
def of_model(model: Any) -> torch.Tensor:
    parts = []
    for prompt, answer in PAIRS:
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        parts.append(logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0])
    return torch.cat(parts)


def test_an_adapter_is_one_that_peft_loads(run, tmp_path: Path):
    folder, logprobs = run
    for version, chosen in ((None, 2), (1, 1)):
        made = export_run(folder.root, tmp_path / f"out{chosen}", version=version, merge=False)
        assert (made.version, made.kind, made.run) == (chosen, "adapter", "my-run")
        assert {file.name for file in made.out.iterdir()} == {
            "README.md", "adapter_config.json", "adapter_model.safetensors"
        }  # fmt: skip
        base = AutoModelForCausalLM.from_pretrained(addmix3_path(), dtype=torch.float32)
        loaded = of_model(PeftModel.from_pretrained(base, str(made.out)))
        torch.testing.assert_close(loaded, logprobs[chosen], atol=1e-5, rtol=0)
    assert not torch.allclose(logprobs[1], logprobs[2], atol=1e-3)


def test_a_merged_model_is_one_that_transformers_loads(run, tmp_path: Path):
    folder, logprobs = run
    made = export_run(folder.root, tmp_path / "out", version=None, merge=True)
    assert made.kind == "model"
    model = AutoModelForCausalLM.from_pretrained(made.out, dtype="auto", local_files_only=True)
    assert model.dtype == torch.float32
    torch.testing.assert_close(of_model(model), logprobs[2], atol=1e-4, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(made.out, local_files_only=True)
    assert tokenizer("123+456=")["input_ids"] == PAIRS[0][0]
    for file in made.out.iterdir():
        assert str(folder.root).encode() not in file.read_bytes()
        assert file.suffix in (".json", ".safetensors", ".md")


def test_a_run_of_all_weights_is_exported_as_the_model_it_is(tmp_path: Path):
    folder, logprobs = make_run(tmp_path / "run", adapter="none", learning_rate=1e-3)
    made = export_run(folder.root, tmp_path / "out", version=1, merge=False)
    assert made.kind == "model"
    model = AutoModelForCausalLM.from_pretrained(made.out, dtype="auto", local_files_only=True)
    torch.testing.assert_close(of_model(model), logprobs[1], atol=1e-4, rtol=0)
    assert (made.out / "tokenizer.json").is_file()


def test_the_card_says_what_and_whose_it_is(run, tmp_path: Path):
    folder, _ = run
    export_run(folder.root, tmp_path / "out", version=2, merge=False)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# my-run, version 2" in card
    assert "trained from 2026-01-0" in card
    assert "| 1 | 0.250 |  |" in card
    assert "| 2 | 0.500 | 0.625 |" in card
    assert "| `learner.rank` | 16 |" in card
    assert f"| {peer_id_of(NODE)} | 16 |" in card
    assert 'base_model: "addmix3"' in card
    assert str(folder.root) not in card
    export_run(folder.root, tmp_path / "earlier", version=1, merge=False)
    earlier = (tmp_path / "earlier" / "README.md").read_text()
    assert "0.625" not in earlier  # of a later version


def test_nothing_is_overwritten_and_nothing_half_left(run, tmp_path: Path):
    folder, _ = run
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    for there in ("full", "file"):
        with pytest.raises(ConfigError, match="is there already"):
            export_run(folder.root, tmp_path / there, version=None, merge=False)
    with pytest.raises(ConfigError, match="cannot write"):
        export_run(folder.root, tmp_path / "file" / "out", version=None, merge=False)
    with pytest.raises(ConfigError, match=r"version 9 is not in .*There are: 0, 1, 2"):
        export_run(folder.root, tmp_path / "out", version=9, merge=False)
    broken = tmp_path / "broken"
    shutil.copytree(folder.root, broken)
    (RunFolder(broken).adapter(2) / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(Exception, match="cannot read"):
        export_run(broken, tmp_path / "out", version=2, merge=True)
    assert {path.name for path in tmp_path.iterdir()} == {"full", "file", "broken"}
    (tmp_path / "empty").mkdir()
    export_run(folder.root, tmp_path / "empty", version=None, merge=False)


def test_a_run_that_was_never_served_says_so(run, tmp_path: Path):
    shutil.copy(run[0].config, tmp_path / "run.toml")
    with pytest.raises(LedgerError, match="made when the run is first served"):
        export_run(tmp_path, tmp_path / "out", version=None, merge=False)


def test_the_command(run, tmp_path: Path):
    arguments = ["export", str(run[0].root), str(tmp_path / "out"), "--version", "1"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert (made["version"], made["kind"], made["out"]) == (1, "adapter", str(tmp_path / "out"))
    assert isinstance(CliRunner().invoke(app, arguments).exception, ConfigError)


FOREIGN = (
    "[x](http://evil.example) <img src=x> | `a` **b** # c www.evil.example a@b.example \n\x1b[1m"
)


def test_foreign_strings_are_letters():
    shown = plain(FOREIGN + "x" * 10_000)
    for markup in "[]()<>|`*\n\x1b.@:":
        assert markup not in shown
    assert len(shown) < 6 * 200
    assert "evil" in shown


def test_cards_stay_of_one_form_and_size_whatever_is_in_them():
    updates = [UpdateRow(version, 0.5, DAY + version) for version in range(1000)]
    facts = CardFacts(
        run_id="r", version=999, merged=True, base=FOREIGN, base_digest="ab", tasks=[FOREIGN],
        updates=updates, evaluations={0: 0.1, 999: 0.9}, settings={"learner": {"device": FOREIGN}},
        contributors=[Contributor(FOREIGN, 3)], program="echo-p2p",
    )  # fmt: skip
    card = render_card(facts)
    body = card.split("---\n", 2)[2]
    assert "evil.example" not in body
    assert "<img" not in body
    assert sum(line.startswith("| ") and "0.500" in line for line in body.splitlines()) == MOST_ROWS
    front = card.split("---\n")[1]
    assert json.loads(front.split("base_model: ")[1].splitlines()[0]) == FOREIGN
