"""`echo-hub check`: what a run will do, and what stands in its way; and orders without a hub."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo_hub.cli import app
from echo_hub.commands.check import check_run, words_of
from echo_hub.commands.presets import preset
from echo_hub.commands.setup_run import init_run
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return init_run(
        tmp_path / "run", run_id="my-run", model="addmix3", hosts=[], port=port, local_demo=False
    )


def change(folder: RunFolder, old: str, new: str) -> None:
    text = folder.config.read_text()
    assert old in text
    folder.config.write_text(text.replace(old, new))


def test_a_sound_run(run: RunFolder) -> None:
    done = CliRunner().invoke(app, ["check", str(run.root), "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"], found["problems"]) == (0, True, [])
    assert "256 rollouts of at most 34 tokens" in " ".join(found["will"])


def test_each_thing_that_stands_in_its_way(run: RunFolder) -> None:
    change(run, 'name = "addmix3"', 'name = "file:/nowhere/task.py"')
    change(run, 'loss_function = ""', 'loss_function = "file:/nowhere/loss.py:mine"')
    run.identity.unlink()
    with socket.socket() as taken:
        listen = next(line for line in run.config.read_text().splitlines() if "listen =" in line)
        port = int(listen.partition("/ip4/127.0.0.1/tcp/")[2].partition('"')[0])
        taken.bind(("127.0.0.1", port))
        taken.listen()
        found = check_run(run.config)
    said = [problem.message for problem in found.problems]
    assert len(said) == 4
    for words in ("identity.pem", "/nowhere/task.py", "/nowhere/loss.py", "cannot be listened on"):
        assert any(words in one for one in said), words
    done = CliRunner().invoke(app, ["check", str(run.root)])
    assert done.exit_code == 2
    assert "/nowhere/task.py" in done.stdout


def test_a_base_that_is_gone_and_a_file_that_is_wrong(run: RunFolder) -> None:
    change(run, 'path = "addmix3"', 'path = "/nowhere/base"')
    assert "no folder with a config.json" in check_run(run.root).problems[0].message
    change(run, "[base]", "[bsae]")
    with pytest.raises(ConfigError, match="bsae"):
        check_run(run.root)


def test_words_for_other_settings() -> None:
    overrides = {
        "run": {"mode": "sequential", "updates": 9},
        "learner": {"adapter": "none", "loss_function": "file:my.py:loss"},
        "evaluation": {"every": 5},
        "network": {"max_upload": "12.5MB"},
        "trackers": {"use": ["wandb"]},
        "dashboard": {"enabled": False},
    }
    text = " ".join(words_of(preset("addmix3", run_id="r", overrides=overrides)))
    for words in (
        "all weights", "9 updates", "take turns", "file:my.py:loss", "every 5 updates",
        "12.5MB", "wandb",
    ):  # fmt: skip
        assert words in text, words
    assert "dashboard" not in text


def test_both_programs_complete_in_a_shell() -> None:
    asked = {"_ECHO_HUB_COMPLETE": "complete_bash", "COMP_WORDS": "echo-hub ba", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], env=asked, prog_name="echo-hub")
    assert done.stdout.split() == ["ban", "backup"]
