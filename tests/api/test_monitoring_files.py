"""docs/alerts.yml and docs/grafana.json load where they belong, and name metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

DOCS = Path(__file__).parents[2] / "docs"

# What Grafana's published schema of dashboards (version 1, grafana-foundation-sdk's
# dashboard.jsonschema.json) says of the parts that ours has; any other part is refused.
TEXT, BOOL, WHOLE = {"type": "string", "minLength": 1}, {"type": "boolean"}, {"type": "integer"}


def part(needed: str, **known: Any) -> dict[str, Any]:
    """An object of these parts alone."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": needed.split(),
        "properties": known,
    }


SOURCE = part("type uid", type={"const": "prometheus"}, uid={"const": "${datasource}"})
VARIABLE = part(
    "type name query",
    type={"enum": ["query", "datasource"]},
    name=TEXT,
    label=TEXT,
    query=TEXT,
    datasource=SOURCE,
    refresh={"enum": [0, 1, 2]},
    includeAll=BOOL,
    multi=BOOL,
)
UNITS = ["none", "s", "bytes", "ops", "percentunit", "bool_yes_no"]  # ids of Grafana's units
PANEL = part(
    "id type title datasource gridPos fieldConfig targets",
    id=WHOLE,
    type={"enum": ["timeseries", "stat"]},
    title=TEXT,
    datasource=SOURCE,
    gridPos=part(
        "h w x y",
        h={**WHOLE, "minimum": 1},
        w={**WHOLE, "minimum": 1, "maximum": 24},
        x={**WHOLE, "minimum": 0, "maximum": 23},
        y={**WHOLE, "minimum": 0},
    ),
    fieldConfig=part(
        "defaults overrides",
        defaults=part("", unit={"enum": UNITS}, min={"type": "number"}, max={"type": "number"}),
        overrides={"type": "array", "maxItems": 0},
    ),
    targets={
        "type": "array",
        "minItems": 1,
        "items": part("refId expr", refId=TEXT, expr=TEXT, legendFormat=TEXT),
    },
    options=part(
        "",
        colorMode={"enum": ["none", "value", "background", "background_solid"]},
        reduceOptions=part("calcs", calcs={"type": "array", "items": {"enum": ["lastNotNull"]}}),
    ),
)
BOARD = part(
    "schemaVersion templating annotations uid title panels",
    schemaVersion={**WHOLE, "minimum": 36},
    uid={**TEXT, "minLength": 8, "maxLength": 40},
    title=TEXT,
    version=WHOLE,
    editable=BOOL,
    refresh={"type": "string", "pattern": "^[0-9]+[smhd]$"},
    tags={"type": "array", "items": TEXT},
    timezone={"enum": ["browser", "utc"]},
    time=part("from to", **{"from": TEXT, "to": TEXT}),
    annotations=part("list", list={"type": "array", "maxItems": 0}),
    links={"type": "array", "maxItems": 0},
    templating=part("list", list={"type": "array", "items": VARIABLE}),
    panels={"type": "array", "items": PANEL, "minItems": 1},
)


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    return found


def test_prometheus_takes_the_alert_rules() -> None:
    check = [promtool(), "check", "rules", str(DOCS / "alerts.yml")]
    done = subprocess.run(check, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 rules found" in done.stdout + done.stderr


@pytest.fixture
def board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
    return loaded


def test_the_grafana_dashboard_is_of_its_form(board: dict[str, Any]) -> None:
    jsonschema.validate(board, BOARD)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies upon another"
        taken |= cells
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "instance", "metric"]
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\$\{?(\w+)", target["expr"])
    }
    assert asked == {"instance", "metric"}


def test_prometheus_understands_every_question_of_the_dashboard(
    board: dict[str, Any], tmp_path: Path
) -> None:
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"asked:{number}", "expr": re.sub(r"\$\w+", ".*", one)}
        for number, one in enumerate(expressions)
    ]
    file = tmp_path / "rules.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))
    done = subprocess.run([promtool(), "check", "rules", str(file)], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout + done.stderr
