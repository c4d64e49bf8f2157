"""`echo-hub plan`: the example of the docs, and what people get wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo_hub.cli import app
from echo_hub.config import RunConfig, load_config
from echo_hub.planner.fleet import Fleet, adapter_bytes, kinds_of, known_cards, load_fleet
from echo_hub.planner.plan import make_plan
from echo_p2p.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "planning.md"
SMALL = """
[learner]
train_s = 40
[work]
tokens = 100
parameters_b = 8
adapter_mb = 10
[[cards]]
name = "RTX 4090"
count = 3
price = 0
"""


def example(name: str) -> str:
    """The file of that name in the docs."""
    found = re.search(rf"```toml {re.escape(name)}\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The example's two files."""
    for name in ("run.toml", "fleet.toml"):
        (tmp_path / name).write_text(example(name), encoding="utf-8")
    return tmp_path / "run.toml", tmp_path / "fleet.toml"


def planned(folder: Path, fleet: str) -> tuple[RunConfig, Fleet]:
    (folder / "run.toml").write_text(example("run.toml"), encoding="utf-8")
    (folder / "fleet.toml").write_text(fleet, encoding="utf-8")
    return load_config(folder / "run.toml"), load_fleet(folder / "fleet.toml")


def test_the_example_of_the_docs_is_what_was_derived_by_hand(files: tuple[Path, Path]) -> None:
    run, fleet = files
    told = CliRunner().invoke(app, ["plan", str(run), "--fleet", str(fleet), "--json"])
    assert told.exit_code == 0
    answer = json.loads(told.stdout)
    plan = answer["plan"]
    assert plan["nodes"] == {"RTX 4090 #1": 4}
    assert (plan["staleness"], plan["kappa"], plan["limit"]) == (2, 1, "learner")
    assert plan["rate_needed"] == pytest.approx(6.4)
    assert plan["broadcast_s"] == pytest.approx(400 / 35)
    assert plan["round_s"] == pytest.approx(67.5, abs=0.5)
    assert plan["minutes_per_100_updates"] == pytest.approx(66.7, abs=0.3)
    assert plan["money_per_100_updates"] == pytest.approx(7.69, abs=0.03)
    assert answer["colocated"]["money_per_100_updates"] == pytest.approx(8.77, abs=0.01)
    assert answer["enough"]
    shown = CliRunner().invoke(app, ["plan", str(run), "--fleet", str(fleet)])
    rows = [
        line.split()
        for line in DOCS.read_text("utf-8").splitlines()
        if "  x " in line or " x RTX" in line
    ]
    in_docs = next(row for row in rows if row and row[0] == "plan")
    in_table = next(
        row.split() for row in shown.stdout.splitlines() if row.strip().startswith("plan")
    )
    assert in_table == in_docs
    assert "co-located" in shown.stdout


def test_a_picture_is_drawn(files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, fleet = files
    png = tmp_path / "plan.png"
    told = CliRunner().invoke(
        app, ["plan", str(run), "--fleet", str(fleet), "--png", str(png), "--json"]
    )
    assert told.exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_rates_come_from_the_table_scaled_to_the_model(tmp_path: Path) -> None:
    config, fleet = planned(tmp_path, SMALL)
    kind = kinds_of(config, fleet)[0]
    row = known_cards()["rtx 4090"]
    assert kind.node.rate == pytest.approx(row.tokens_per_s * row.parameters_b / 8 / 100)
    assert row.rate_source in kind.rate_source


def test_every_known_card_has_a_source_and_a_date() -> None:
    for row in known_cards().values():
        assert row.rate_source
        assert re.search(r"\d{4}-\d\d", row.rate_date)
        assert row.price is None or (
            row.price_source and re.match(r"\d{4}-\d\d-\d\d", row.price_date)
        )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"RTX 4090"', '"Voodoo 2"', "nothing is known of a card 'Voodoo 2'"),
        ("parameters_b = 8\n", "", "size of your model is not known"),
        ('name = "RTX 4090"\ncount = 3\nprice = 0', 'name = "A40"\ncount = 3', "price of A40"),
        ("count = 3", "count = 0", "cards.0.count"),
        ("train_s = 40", "train_s = -1", "learner.train_s"),
        ("price = 0", "price = -0.1", "cards.0.price"),
        ("price = 0", "price = nan", "cards.0.price"),
        ("tokens = 100", "token = 100", "there is no such key"),
    ],
)
def test_what_is_wrong_in_a_fleet_file_is_said(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_plan(*planned(tmp_path, SMALL.replace(old, new)))


def test_volunteers_cost_nothing_and_too_few_are_told(tmp_path: Path) -> None:
    made = make_plan(*planned(tmp_path, SMALL.replace("count = 3", "count = 1")))
    assert made.best.money == 0
    assert made.enough
    slow = SMALL.replace("count = 3", "count = 1\nrollouts_per_s = 0.5\nat_a_time = 8")
    made = make_plan(*planned(tmp_path, slow))
    assert not made.enough
    assert made.missing.startswith("rate")
    assert made.best.counts == {"RTX 4090 #1": 1}


def test_a_latency_that_no_staleness_in_bounds_hides_is_told(tmp_path: Path) -> None:
    fleet = SMALL.replace("[[cards]]", "broadcast_s = 150\n[[cards]]", 1)
    made = make_plan(*planned(tmp_path, fleet + "[plan]\nmax_staleness = 2\n"))
    assert not made.enough
    assert made.missing.startswith("latency")
    least = re.search(r"Allow S = (\d+)", made.missing)
    assert least is not None
    made = make_plan(*planned(tmp_path, fleet + f"[plan]\nmax_staleness = {least[1]}\n"))
    assert made.enough
    assert made.best.run.staleness == int(least[1])


def test_a_lease_time_that_nobody_can_keep_is_told(tmp_path: Path) -> None:
    config, fleet = planned(tmp_path, SMALL)
    short = config.model_copy(update={"lease": config.lease.model_copy(update={"seconds": 2.0})})
    made = make_plan(short, fleet)
    assert not made.enough
    assert "lease.seconds" in made.missing


def test_ten_thousand_machines_can_be_planned(tmp_path: Path) -> None:
    fleet = SMALL.replace("count = 3", "count = 10000\nrollouts_per_s = 1")
    made = make_plan(*planned(tmp_path, fleet + "[plan]\nmax_staleness = 2\n"))
    assert sum(made.best.counts.values()) < 20


def test_the_size_of_an_adapter_follows_from_the_base_model(tmp_path: Path) -> None:
    config, _ = planned(tmp_path, SMALL)
    size = adapter_bytes(config)
    assert size is not None
    assert size == 448_512  # addmix3, rank 16, float32: as peft saves it, less the header
    nowhere = config.model_copy(update={"base": config.base.model_copy(update={"path": "none"})})
    assert adapter_bytes(nowhere) is None
