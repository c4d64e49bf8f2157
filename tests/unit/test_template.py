"""`run.toml` as written by init reads back as the same configuration."""

from __future__ import annotations

import pytest

from echo_hub.commands.presets import MODELS, Model, preset
from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig
from echo_p2p.errors import ConfigError
from echo_p2p.identity import peer_id_of
from echo_p2p.toml import parse_toml

PEER = peer_id_of(bytes(32))


@pytest.mark.parametrize("model", MODELS)
def test_round_trip(model: Model) -> None:
    config = preset(model, run_id="a-run", overrides={"task": {"options": {"depth": [1, 2.5]}}})
    text = render_config(config)
    assert parse_toml(text, RunConfig, source="run.toml") == config


def test_every_key_is_commented() -> None:
    text = render_config(preset("addmix3", run_id="a-run", overrides={}))
    lines = text.splitlines()
    for position, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[position - 1].startswith("#"), line


def test_an_unknown_key_says_which_exist() -> None:
    text = '[run]\nid = "a"\n\n[learner]\nstalness = 3\n'
    with pytest.raises(ConfigError, match=r"run\.toml:5: learner\.stalness: .*staleness"):
        parse_toml(text, RunConfig, source="run.toml")


def test_a_wrong_setting_of_a_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^the preset addmix3: run\.id: .*\(found 'Bad Run'\)"):
        preset("addmix3", run_id="Bad Run", overrides={})
    with pytest.raises(ConfigError, match=r"^the preset smollm2: run\.mode: .*\(found 'fast'\)"):
        preset("smollm2", run_id="a", overrides={"run": {"mode": "fast"}})


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('listen = ["foo"]', "'foo' is not an address to listen on"),
        ('listen = ["/dns4/hub.example/tcp/1"]', "it has a name"),
        ('announce = ["hub.example:1"]', "'hub.example:1' is not an address"),
        (f'announce = ["/ip4/1.2.3.4/tcp/1/p2p/{PEER}"]', "is wanted without /p2p"),
        ('directory_listen = ["/ip4/1.2.3.4"]', "should read"),
        ('directory_peers = ["/ip4/1.2.3.4/tcp/1"]', "does not end in /p2p/"),
        ('max_upload = "20 Mb"', "'20 Mb' is not a rate. Write it like 20mbit"),
        ('max_upload = "0"', "nobody could get a version"),
    ],
)
def test_network_settings_are_checked_when_they_are_read(setting: str, complaint: str) -> None:
    field = setting.partition(" ")[0]
    text = f'[run]\nid = "a"\n[network]\n{setting}\n'
    with pytest.raises(ConfigError, match=rf"^run\.toml:4: network\.{field}: .*{complaint}"):
        parse_toml(text, RunConfig, source="run.toml")


def test_kappa_beyond_the_staleness_is_refused() -> None:
    text = '[run]\nid = "a"\n[learner]\nstaleness = 2\n[publish]\nevery = 5\n'
    with pytest.raises(
        ConfigError, match=r"^run\.toml:6: publish\.every: 5 is more .* fresh enough\.$"
    ):
        parse_toml(text, RunConfig, source="run.toml")
