"""docs/alerts.yml and docs/grafana.json load where they belong, and name metrics that there are."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_prometheus_takes_the_alert_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    check = [promtool, "check", "rules", str(DOCS / "alerts.yml")]
    done = subprocess.run(check, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 rules found" in done.stdout + done.stderr


def test_the_grafana_dashboard_is_of_its_form() -> None:
    board: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
    assert board["schemaVersion"] >= 36
    assert board["uid"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in board["panels"]:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["targets"]
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        for target in panel["targets"]:
            assert target["expr"]
            assert target["refId"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies upon another"
        taken |= cells
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "instance", "metric"]
