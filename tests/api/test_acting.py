"""What an operator does over the API, and hears of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
from served import Served

from echo_hub.api import models
from echo_hub.api.overview import in_brief


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    told = models.Done.model_validate(answer.json())
    assert told.done
    return told.sentence


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 409, answer.text
    problem = models.Problem.model_validate(answer.json())
    return f"{problem.message} {problem.fix}"


def events(lines: Iterator[str]) -> Iterator[tuple[str, int | None, object]]:
    """(kind, number, data) of a stream."""
    kind, number, data = "", None, ""
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "event":
            kind = value
        elif key == "id":
            number = int(value)
        elif key == "data":
            data = value
        elif not line:
            yield kind, number, json.loads(data)
            kind, number, data = "", None, ""


def await_event(
    told: Iterator[tuple[str, int | None, object]], kind: str, **detail: str
) -> tuple[int, models.EventFacts]:
    """The next event of a kind with these details, and its number."""
    for name, number, data in told:
        if name == "event":
            event = models.EventFacts.model_validate(data)
            if event.kind == kind and detail.items() <= event.detail.items():
                assert number is not None
                return number, event
    raise AssertionError("the stream ended")


def test_nodes_are_banned_and_let_in_put_in_quarantine_and_released(
    served: Served, browser: httpx.Client
) -> None:
    node = served.nodes[1]
    path = f"/api/v1/nodes/{node}"

    def standing() -> tuple[str, str]:
        one = browser.get(path).json()
        return one["standing"], one["why"]

    assert said(browser.post(f"{path}/ban", json={"why": "it cheats."})) == f"banned {node}"
    assert standing() == ("banned", "it cheats.")
    assert browser.get("/api/v1/nodes", params={"standing": "banned"}).json()["total"] == 1
    said(browser.post(f"{path}/unban"))
    said(browser.post(f"{path}/quarantine", json={}))
    assert standing() == ("quarantined", "the operator decided so.")
    said(browser.post(f"{path}/release"))
    assert standing() == ("newcomer", "")
    nobody = "/api/v1/nodes/" + "1" * 52
    assert browser.post(f"{nobody}/ban", json={}).status_code == 404


def test_the_run_is_paused_and_goes_on(browser: httpx.Client) -> None:
    assert said(browser.post("/api/v1/run/pause", json={"why": "lunch"})) == "paused at version 1"
    assert said(browser.post("/api/v1/run/resume")) == "goes on from version 1"
    assert "not paused" in refused(browser.post("/api/v1/run/resume"))


def test_versions_are_pinned_and_only_those_there_are(browser: httpx.Client) -> None:
    said(browser.post("/api/v1/versions/1/pin"))
    assert browser.get("/api/v1/versions/1").json()["pinned"]
    said(browser.post("/api/v1/versions/1/unpin"))
    assert not browser.get("/api/v1/versions/1").json()["pinned"]
    assert "There are: 0, 1." in refused(browser.post("/api/v1/versions/7/pin"))
    assert "no checkpoint" in refused(browser.post("/api/v1/versions/7/rollback"))


def test_a_stream_tells_what_happens_and_goes_on_where_it_was_lost(
    served: Served, browser: httpx.Client
) -> None:
    node = served.nodes[1]
    with browser.stream("GET", "/api/v1/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = events(stream.iter_lines())
        assert next(told)[0] == "ping"
        said(browser.post(f"/api/v1/nodes/{node}/quarantine", json={"why": "odd"}))
        last, _ = await_event(told, "node_quarantined", why="odd")
    said(browser.post(f"/api/v1/nodes/{node}/release"))  # while nobody listens
    behind = {"last-event-id": str(last)}
    with browser.stream("GET", "/api/v1/events", headers=behind) as stream:
        number, _ = await_event(events(stream.iter_lines()), "node_released")
        assert number > last
    missed = {"last-event-id": "7"}  # of long ago
    with browser.stream("GET", "/api/v1/events", headers=missed) as stream:
        assert next(events(stream.iter_lines()))[0] == "reset"


def test_overviews_come_each_second_and_streams_are_bounded(
    served: Served, browser: httpx.Client
) -> None:
    with browser.stream("GET", "/api/v1/events") as stream:
        for kind, _, data in events(stream.iter_lines()):
            if kind == "overview":
                told = models.Overview.model_validate(data)
                break
    whole = models.Overview.model_validate(browser.get("/api/v1/overview").json())
    assert told.reward.updates == whole.reward.updates[-10:]
    assert told.reward.heldout == whole.reward.heldout[-10:]
    rewards = whole.reward.model_copy(update={"updates": whole.reward.updates * 30})
    long = in_brief(whole.model_copy(update={"reward": rewards}))
    assert len(long.reward.updates) == 10
    while served.site.feed.watchers:  # those who left are noticed
        time.sleep(0.05)
    served.site.feed.watchers = 128
    try:
        assert browser.get("/api/v1/events").status_code == 503
    finally:
        served.site.feed.watchers = 0
