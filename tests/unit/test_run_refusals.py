"""Settings of run.toml that could not work, or would silently switch something off, are refused."""

from __future__ import annotations

import pytest

from echo_hub.config import RunConfig
from echo_p2p.errors import ConfigError
from echo_p2p.toml import parse_toml


@pytest.mark.parametrize(
    ("section", "line", "field"),
    [
        ("scoring", "timeout_s = inf", "timeout_s"),
        ("learner", "max_grad_norm = inf", "max_grad_norm"),
        ("learner", "weight_bounds = [0, inf]", "weight_bounds"),
        ("guard", "mismatch_kl = inf", "mismatch_kl"),
        ("audit", "max_margin = nan", "max_margin"),
    ],
)
def test_no_number_is_infinite(section: str, line: str, field: str) -> None:
    """JSON, in which the learner gets its configuration, has no infinity."""
    text = f'[run]\nid = "x"\n[{section}]\n{line}\n'
    with pytest.raises(ConfigError, match=rf"run.toml:4: {section}.{field}.*(finite|greater)"):
        parse_toml(text, RunConfig, source="run.toml")


@pytest.mark.parametrize(
    ("section", "lines", "why"),
    [
        ("guard", "gradient_warmup = 64", "guard.gradient_warmup: .* could ever be a spike"),
        ("guard", "reward_window = 33\nreward_memory = 64", "guard.reward_memory: .* to 65"),
        ("curriculum", "low = 0.5\nhigh = 0.5", "curriculum.low: it is not below high"),
        ("network", "listen = []", "network.listen: nobody could reach a hub"),
        ("learner", "betas = [0.9, 1.0]", "learner.betas.1: .* less than 1"),
        ("sampling", "temperature = 1e-300", "sampling.temperature: .* 0.01"),
        ("scoring", "memory = 99999999999999", "scoring.memory: .* less than"),
        ("scoring", "processes = 100000", "scoring.processes: .* less than"),
    ],
)
def test_what_could_not_work(section: str, lines: str, why: str) -> None:
    text = f'[run]\nid = "x"\n[{section}]\n{lines}\n'
    with pytest.raises(ConfigError, match=why):
        parse_toml(text, RunConfig, source="run.toml")


def test_a_guard_that_just_remembers_enough() -> None:
    text = '[run]\nid = "x"\n[guard]\nreward_window = 33\nreward_memory = 65\n'
    assert parse_toml(text, RunConfig, source="run.toml").guard.reward_memory == 65
