"""Calibration: exact bounds, thresholds with their false positives, and whose run they are for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import echo_node.engines.base as node_base
import echo_node.engines.messages as node_messages
from echo_hub.audit import engine
from echo_hub.audit.bounds import binomial_upper, poisson_upper
from echo_hub.audit.calibration import Calibration, Setting, calibrate, load, save
from echo_hub.audit.honest import calibrate_run
from echo_hub.audit.rules import audit_rules, base_digest
from echo_hub.audit.sequential import EDGES, FLOAT32
from echo_hub.commands.presets import preset
from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig
from echo_hub.learner.messages import Audited
from echo_hub.models import addmix3_path
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError

SETTING = Setting(base="ab", dtype="float32", temperature=1.0, top_k=0, top_p=1.0)


@pytest.mark.parametrize(
    ("count", "trials", "expected"),
    [(0, 100, 0.0295130), (3, 1000, 0.00773524), (57, 300, 0.231158), (5, 5, 1.0)],
)
def test_clopper_pearson(count: int, trials: int, expected: float) -> None:
    assert binomial_upper(count, trials, 0.95) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("count", "expected"), [(0, 4.60517), (1, 6.63835), (500, 554.536)])
def test_garwood(count: int, expected: float) -> None:
    assert poisson_upper(count, 1.0, 0.99) == pytest.approx(expected, rel=1e-5)
    assert poisson_upper(count, 10.0, 0.99) == pytest.approx(expected / 10, rel=1e-5)


@given(st.integers(0, 50), st.integers(1, 50))
def test_bounds_lie_above_what_was_seen(count: int, more: int) -> None:
    trials = count + more
    assert count / trials < binomial_upper(count, trials, 0.95) <= 1


def found(margin: float, difference: float, tokens: int = 30) -> Audited:
    return Audited(
        max_margin=margin,
        max_logprob_difference=difference,
        mismatches=int(margin > 0),
        tokens=tokens,
        margins=tuple(int(margin > edge) for edge in EDGES),
        differences=tuple(int(difference > edge) for edge in EDGES),
        chance=tokens / 20,
        bits=tokens / 10,
    )


def noisy(seed: int, count: int = 400) -> list[Audited]:
    rng = np.random.default_rng(seed)
    return [found(0.05 * rng.random() * (rng.random() < 0.1), 0.2 * rng.random())
            for _ in range(count)]  # fmt: skip


def test_thresholds_leave_room_and_state_their_false_positives() -> None:
    made = calibrate(SETTING, noisy(1), engine="torch", versions=[3, 1])
    assert 2 * 0.15 < made.max_logprob_difference < 0.4
    assert made.max_margin >= made.max_logprob_difference
    assert (made.judged, made.false_positives) == (200, 0)
    assert made.false_positive_rate_upper == pytest.approx(binomial_upper(0, 200, 0.95))
    assert made.versions == [1, 3]
    assert made.tokens == 400 * 30
    for counted, rate in zip(made.differences, made.difference_rates, strict=True):
        assert rate > counted / made.tokens


def test_small_noise_is_taken_for_small() -> None:
    quiet = [found(0.0, 2e-5) for _ in range(100)]
    made = calibrate(SETTING, quiet, engine="torch", versions=[0])
    assert made.noise.margin_rates == FLOAT32.margin_rates
    assert made.max_margin == made.max_logprob_difference == 1e-3
    loud = calibrate(SETTING, noisy(2), engine="torch", versions=[0])
    assert min(loud.noise.margin_rates) > max(FLOAT32.margin_rates)


def test_outliers_in_the_judged_half_are_counted() -> None:
    work = [found(0.0, 1e-5), found(5.0, 1e-5)] * 50
    made = calibrate(SETTING, work, engine="torch", versions=[0])
    assert made.false_positive_rate == 1.0


def config(**base: str) -> RunConfig:
    return preset("addmix3", run_id="test", overrides={"base": {"path": "addmix3", **base}})


def test_a_calibration_comes_back_and_sets_the_limits(tmp_path: Path) -> None:
    folder, base, run = RunFolder(tmp_path), addmix3_path(), config()
    setting = msgspec.structs.replace(SETTING, base=base_digest(base))
    made = calibrate(setting, noisy(3), engine="torch", versions=[0])
    save(made, folder.calibration)
    assert load(folder.calibration) == made
    ruled, noise = audit_rules(run, folder, base)
    assert ruled.audit.max_margin == made.max_margin
    assert ruled.audit.max_logprob_difference == made.max_logprob_difference
    assert ruled.model_copy(update={"audit": run.audit}) == run
    assert noise == made.noise


@pytest.mark.parametrize(
    "other", [{"base": "cd"}, {"dtype": "bfloat16"}, {"temperature": 0.5}, {"top_k": 5}]
)
def test_a_calibration_of_another_run_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    folder, base = RunFolder(tmp_path), addmix3_path()
    setting = msgspec.structs.replace(SETTING, base=base_digest(base))
    setting = msgspec.structs.replace(setting, **other)
    save(calibrate(setting, noisy(3), engine="torch", versions=[0]), folder.calibration)
    with pytest.raises(ConfigError, match="calibrated for"):
        audit_rules(config(), folder, base)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
def test_a_damaged_calibration_is_refused(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.calibration.write_text(text)
    with pytest.raises(ConfigError, match=r"audit\.json"):
        audit_rules(config(), folder, addmix3_path())


def test_bfloat16_needs_a_calibration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="condemn honest nodes"):
        audit_rules(config(dtype="bfloat16"), RunFolder(tmp_path), addmix3_path())
    run, noise = audit_rules(config(), RunFolder(tmp_path), addmix3_path())
    assert (run, noise) == (config(), FLOAT32)


def test_a_run_is_calibrated(tmp_path: Path) -> None:
    """The node's engine in one process, the auditor in another, both in bfloat16."""
    folder = RunFolder(tmp_path)
    run = config(dtype="bfloat16")
    folder.config.write_text(render_config(run))
    seen: list[tuple[int, int]] = []
    made = calibrate_run(folder, rollouts=100, progress=lambda *done: seen.append(done))
    assert seen == [(64, 100), (100, 100)]
    assert isinstance(made, Calibration)
    assert made.rollouts == 100
    assert made.false_positives == 0
    assert "bfloat16" in made.engine
    assert 1e-4 < made.largest_difference < 1.0
    ruled, _ = audit_rules(run, folder, addmix3_path())
    assert ruled.audit.max_margin == made.max_margin
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "run.toml"]


def test_the_engine_is_spoken_to_in_its_own_messages() -> None:
    """The hub's shapes of the node's messages are the node's."""
    names = (
        "Load", "Loaded", "Activate", "Activated", "Release", "Submit", "Order", "Done", "Refused",
        "Lost", "Beat", "Failed",
    )  # fmt: skip
    pairs = [(getattr(engine, name), getattr(node_messages, name)) for name in names]
    pairs += [(getattr(engine, n), getattr(node_base, n)) for n in ("EngineInfo", "Job")]
    pairs.append((engine.Completion, node_base.Completion))
    for ours, theirs in pairs:
        assert _shape(ours) == _shape(theirs)


def _shape(kind: type[msgspec.Struct]) -> list[object]:
    info = msgspec.inspect.type_info(kind)
    modules = (engine.__name__, node_messages.__name__, node_base.__name__)
    fields = "\n".join(map(str, info.fields))
    for module in modules:
        fields = fields.replace(f"{module}.", "")
    return [info.tag, fields]
