"""What a `Hub` makes of what it is given: configuration, folder, keys; and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import echo_hub
from echo_hub import Hub, RunConfig, load_config
from echo_hub.commands.presets import preset
from echo_hub.commands.setup_run import init_run
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity


def config(**overrides: dict[str, Any]) -> RunConfig:
    return preset("addmix3", run_id="mine", overrides=overrides)


def test_a_run_toml_is_taken_as_it_is(tmp_path: Path) -> None:
    made = init_run(
        tmp_path / "run", run_id="mine", model="addmix3", hosts=[], port=42420, local_demo=False
    )
    before = made.config.read_text()
    for place in (made.root, made.config, str(made.root)):
        hub = Hub(place, task="sokoban")
        assert hub.folder == made.root
        assert hub.config.task.name == "sokoban"
        assert hub.version == 0
    assert made.config.read_text() == before
    with pytest.raises(ConfigError, match="leave folder out"):
        Hub(made.config, folder=tmp_path)


def test_a_config_gets_a_folder_with_keys_once(tmp_path: Path) -> None:
    network = {"announce": ["/dns4/hub.example.org/tcp/42420"]}
    first = Hub(config(network=network), folder=tmp_path / "run")
    key = Identity.load(tmp_path / "run" / "identity.pem")
    again = Hub(config(network=network, run={"seed": 1}), folder=tmp_path / "run")
    assert Identity.load(tmp_path / "run" / "identity.pem") == key
    assert first.bootstrap == again.bootstrap
    assert load_config(tmp_path / "run" / "run.toml").run.seed == 1
    assert f"/dns4/hub.example.org/tcp/42420/p2p/{key.peer_id}" in first.bootstrap.read_text()
    with pytest.raises(ConfigError, match="not where its run is kept"):
        Hub(config())


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    tasks: Any = [{"name": "addmix3"}, {"name": "countdown"}]
    both = RunConfig.model_validate({"run": {"id": "mine"}, "tasks": tasks})
    with pytest.raises(ConfigError, match="several"):
        Hub(both, folder=tmp_path / "a", reward=lambda _prompt, _answer: 1.0)
    with pytest.raises(ConfigError, match="there is no model"):
        Hub.local("gpt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is no table"):
        Hub.local(settings={"learner": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"learner\.rate: there is no such key"):
        Hub.local(settings={"learner": {"rate": 1}})
    with pytest.raises(ConfigError, match="no class or function at the top"):
        Hub.local(reward=lambda _prompt, _answer: 1.0)


def test_several_tasks_give_way_to_one(tmp_path: Path) -> None:
    tasks: Any = [{"name": "addmix3"}, {"name": "countdown"}]
    both = RunConfig.model_validate({"run": {"id": "mine"}, "tasks": tasks})
    assert len(Hub(both, folder=tmp_path / "a").config.all_tasks) == 2
    assert [
        one.name for one in Hub(both, folder=tmp_path / "b", task="wordle").config.all_tasks
    ] == ["wordle"]


def test_every_public_name_is_there_and_nothing_is_imported_before_it_is_used() -> None:
    for name in echo_hub.__all__:
        assert getattr(echo_hub, name) is not None
    assert set(echo_hub.__all__) <= set(dir(echo_hub))
    code = (
        "import sys, echo_hub; from echo_hub import Prompt, draw;"
        "print([m for m in ('torch', 'trio', 'fastapi', 'rich', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
