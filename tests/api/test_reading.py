"""What the API says of a run, from its ledger and its live hub."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from served import HOSTILE, Served

from echo_hub.api import models
from echo_p2p.identity import peer_id_of

DOCS = Path(__file__).parents[2] / "docs"


def test_the_overview_says_how_the_run_is(served: Served, browser: httpx.Client) -> None:
    seen = models.Overview.model_validate(browser.get("/api/v1/overview").json())
    assert (seen.version, seen.published, seen.run.staleness) == (1, 1, 2)
    latest = seen.reward.latest
    assert latest is not None
    assert (latest.mean, latest.rollouts) == (0.5, 8)
    assert latest.low == pytest.approx(0.5 - 0.196, abs=1e-3)
    assert seen.reward.heldout[0].prompts == 64
    assert seen.learner.idle == pytest.approx(0.2)
    assert seen.rates.needed == pytest.approx(10.0)  # 8 rollouts in 0.8 s
    assert seen.dissemination.last_s_median == 1.5
    assert seen.counts.nodes_known == 2
    assert seen.bottleneck.sentence


def test_nodes_are_searched_sorted_and_paged(served: Served, browser: httpx.Client) -> None:
    good, odd = served.nodes
    page = models.NodePage.model_validate(browser.get("/api/v1/nodes").json())
    assert [one.node for one in page.nodes] == [good, odd]
    assert [one.accepted for one in page.nodes] == [10, 2]
    assert page.nodes[1].rejected == {"bad_envelope": 2}  # a whole group of them
    turned = browser.get("/api/v1/nodes", params={"descending": False}).json()
    assert turned["nodes"][0]["node"] == odd
    for sort in ("rate", "version", "node", "valid", "last_seen", "first_seen", "rejected"):
        answer = browser.get("/api/v1/nodes", params={"sort": sort, "limit": 1, "offset": 1})
        assert (answer.json()["total"], len(answer.json()["nodes"])) == (2, 1), sort
    found = browser.get("/api/v1/nodes", params={"search": odd[-9:].lower()}).json()
    assert [one["node"] for one in found["nodes"]] == [odd]
    assert browser.get("/api/v1/nodes", params={"standing": "banned"}).json()["total"] == 0
    one = models.NodeDetail.model_validate(browser.get(f"/api/v1/nodes/{good}").json())
    assert one.standing == "proven"
    assert one.trained_groups >= 3


def test_a_node_that_has_just_joined_is_among_them(served: Served, browser: httpx.Client) -> None:
    new = peer_id_of(bytes(range(32)))
    assert browser.get(f"/api/v1/nodes/{new}").status_code == 404
    served.joined.add(new)
    for asked in ({}, {"sort": "rate"}, {"search": new[-9:]}, {"standing": "newcomer"}):
        page = models.NodePage.model_validate(browser.get("/api/v1/nodes", params=asked).json())
        (line,) = [one for one in page.nodes if one.node == new]
        assert (line.accepted, line.first_seen, line.in_session) == (0, None, True)
    assert browser.get(f"/api/v1/nodes/{new}").json()["node"] == new
    served.joined.clear()


def test_who_joins_and_who_leaves_is_news(served: Served, browser: httpx.Client) -> None:
    new = peer_id_of(bytes(range(1, 33)))
    served.joined |= {new, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"}  # no key in that id
    with browser.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()

        def told() -> bool:
            for line in lines:
                if line.startswith("data: [") and new in line:
                    (one,) = [one for one in json.loads(line[5:]) if one["node"] == new]
                    return bool(one["in_session"])
            raise AssertionError("the stream ended")

        assert told()
        served.joined.clear()
        assert not told()


def test_a_group_is_shown_token_by_token_with_its_audit(
    served: Served, browser: httpx.Client
) -> None:
    page = models.GroupPage.model_validate(browser.get("/api/v1/rollouts").json())
    assert [one.group for one in page.groups] == [6, 5, 4, 3, 2, 1]
    group = models.GroupDetail.model_validate(browser.get("/api/v1/rollouts/1").json())
    assert group.audit is not None
    assert group.audit.tokens == 10
    right, wrong = group.rollouts
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert (right.advantage, wrong.advantage) == (0.5, -0.5)
    assert len(right.tokens) == len(right.logprobs)
    assert group.prompt.endswith("=")
    assert browser.get("/api/v1/rollouts/99").status_code == 404


def test_a_version_has_its_size_its_way_and_its_metrics(
    served: Served, browser: httpx.Client
) -> None:
    page = models.VersionPage.model_validate(browser.get("/api/v1/versions").json())
    assert [one.version for one in page.versions] == [1, 0]
    newest = page.versions[0]
    assert (newest.size, newest.delta_ratio, newest.groups, newest.kept) == (1000, 0.4, 4, True)
    assert newest.spread is not None
    assert newest.spread.peer_share == 0.75
    one = models.VersionDetail.model_validate(browser.get("/api/v1/versions/1").json())
    assert one.metrics["loss"] == -0.25
    names = browser.get("/api/v1/learner/metrics").json()["names"]
    assert "loss" in names
    series = browser.get("/api/v1/learner/series", params={"name": ["loss"]}).json()["series"]
    assert series[0]["points"][0]["mean"] == -0.25


def test_hostile_text_stays_data(served: Served, browser: httpx.Client) -> None:
    answer = browser.get("/api/v1/events/history", params={"kind": "reply_failed"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    (event,) = answer.json()["events"]
    assert event["detail"]["why"] == HOSTILE
    node = served.nodes[1]
    words = {"name": "<img src=x onerror=alert(1)>", "note": HOSTILE}
    assert browser.put(f"/api/v1/nodes/{node}/annotation", json=words).json()["done"]
    assert browser.get(f"/api/v1/nodes/{node}").json()["note"] == HOSTILE
    assert browser.get("/api/v1/nodes", params={"search": "onerror"}).json()["total"] == 1
    browser.put(f"/api/v1/nodes/{node}/annotation", json={})


def test_the_public_page_names_no_address_and_no_key(served: Served) -> None:
    with served.client() as stranger:
        text = stranger.get("/api/v1/public").text
    told = models.PublicProgress.model_validate_json(text)
    assert [one.accepted for one in told.leaders] == [10, 2]
    for node in served.nodes:
        assert node not in text
        assert node[-8:] not in text
    assert "192.0.2.7" not in text


def test_prometheus_can_read_the_metrics(browser: httpx.Client) -> None:
    text = browser.get("/metrics").text
    assert 'echo_hub_nodes{state="known"} 2.0' in text
    assert 'echo_hub_learner{metric="loss"} -0.25' in text
    assert "echo_hub_rollouts_handed_in_total 14.0" in text
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True
    )
    assert (done.returncode, done.stderr + done.stdout) == (0, "")


def test_the_document_names_no_other_host(browser: httpx.Client) -> None:
    page = browser.get("/api/docs").text
    assert "/api/v1/overview" in page
    assert "http://" not in page.replace("http://json-schema.org", "")
    assert "https://" not in page
    assert "<script" not in page
    document = browser.get("/api/openapi.json").json()
    assert json.dumps(document).count("operationId") > 25


def test_rules_and_dashboard_name_metrics_that_there_are(browser: httpx.Client) -> None:
    types = re.findall(r"^# TYPE (\S+)", browser.get("/metrics").text, re.MULTILINE)
    there = {*types, "echo_hub_alert"}
    for file in ("alerts.yml", "grafana.json"):
        named = set(re.findall(r"\becho_hub_[a-z_]+", (DOCS / file).read_text()))
        assert len(named) > 5
        assert named <= there, named - there
