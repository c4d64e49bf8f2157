"""The API's decisions alone: what limits a run, when to raise an alert, what a watcher is sent."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from echo_hub.api.alarms import Alarms, Readings
from echo_hub.api.app import SERVED
from echo_hub.api.bottleneck import Signs, bottleneck
from echo_hub.api.delivery import Delivery
from echo_hub.api.feed import KEPT, PING_S, Feed
from echo_hub.api.models import Alert
from echo_hub.api.view import Samples
from echo_hub.config.dashboard import AlertsSection
from echo_hub.dashboard import ASSETS
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.reputation import FAULTS

BUSY = Signs(
    version=9, idle=0.03, nodes_in_session=3, nodes_working=3, needed=10.0, had=11.0, accepted=900,
    groups_per_update=8, staleness=2, spread_s=1.0, hides_s=10.0,
)  # fmt: skip


def but(**changes: object) -> Signs:
    return Signs(**{**vars(BUSY), **changes})


@pytest.mark.parametrize(
    ("signs", "limit", "words"),
    [
        (BUSY, "none", "The learner is busy: it waits for 3% of its time."),
        (but(had=30.0), "learner", "3.0 times"),
        (but(complete=True), "complete", "version 9"),
        (but(paused="a spike."), "paused", "a spike."),
        (but(disk_free=1 << 20, disk_needed=1 << 30), "disk", "1 MiB"),
        (but(nodes_in_session=0, had=0.0), "nodes", "No node is connected"),
        (but(idle=None), "starting", "first updates"),
        (but(auditing=0.7), "audit", "audits for 70%"),
        (but(idle=0.4, had=6.0), "nodes", "Too few nodes: 3 give 6 rollouts/s"),
        (but(idle=0.4, had=12.0), "nodes", "too many come at once"),
        (but(idle=0.4, rejected={"stale": 500}), "staleness", "36% of the rollouts come too late"),
        (but(idle=0.4, rejected={"audit_margin": 500}), "rejections", "as audit_margin"),
        (but(idle=0.4, checking=20), "scoring", "20 groups wait for their reward"),
        (but(idle=0.4, checking=20, audits_wait=15), "audit", "20 groups wait for their audit"),
        (but(idle=0.4, spread_s=12.0), "broadcast", "takes 12 s to reach the nodes"),
    ],
)
def test_one_sentence_names_the_bottleneck(signs: Signs, limit: str, words: str) -> None:
    found = bottleneck(signs)
    assert (found.limit, words in found.sentence) == (limit, True), found
    assert found.fix or limit in ("none", "complete", "starting")


def test_too_few_nodes_says_how_many_more() -> None:
    assert "About 2 more" in bottleneck(but(idle=0.4, had=6.0)).fix


RULES = AlertsSection(
    idle_share=0.5, idle_s=10, no_nodes_s=5, rejected_of=100, every_s=60, disk_mib=100
)


def kinds(alerts: list[Alert]) -> list[str]:
    return [alert.kind for alert in alerts]


def fine(now: float, **changes: object) -> Readings:
    return Readings(**{"now": now, "at": 1e9 + now, "nodes": 2, **changes})


def test_alerts_are_raised_once_and_again_only_after_a_while() -> None:
    alarms = Alarms(RULES)
    full = {"disk_free": 50 << 20}
    assert kinds(alarms.look(fine(0, **full))) == ["disk"]
    assert kinds(alarms.shown()) == ["disk"]
    assert alarms.look(fine(1, **full)) == []
    assert alarms.look(fine(2)) == []
    assert alarms.shown() == []
    assert alarms.look(fine(3, **full)) == []  # too soon after the first
    assert kinds(alarms.shown()) == ["disk"]
    assert kinds(alarms.look(fine(70, **full))) == ["disk"]  # it came back, and stayed
    assert alarms.look(fine(200, **full)) == []  # the same one


def test_a_learner_that_waits_and_nodes_that_left_are_noticed_after_a_while() -> None:
    alarms = Alarms(RULES)
    raised = [kinds(alarms.look(fine(t, waiting=t >= 4))) for t in range(20)]
    assert [t for t, found in enumerate(raised) if found] == [10]  # 6 of the last 10 s
    alarms = Alarms(RULES)
    raised = [kinds(alarms.look(fine(t, nodes=0))) for t in range(9)]
    assert [(t, found) for t, found in enumerate(raised) if found] == [(5, ["no_nodes"])]
    assert kinds(alarms.look(fine(9))) == []
    assert alarms.shown() == []
    paused = Alarms(RULES)
    told = [kinds(paused.look(fine(t, nodes=0, waiting=True, active=False))) for t in range(30)]
    assert not any(told)  # nothing is wanted of a run that is complete


def test_bursts_of_rejections_and_returns_to_earlier_versions() -> None:
    alarms = Alarms(RULES)
    assert alarms.look(fine(0, accepted=20, rejected=60)) == []  # too few to say
    (burst,) = alarms.look(fine(1, accepted=100, rejected=60))
    assert burst.sentence == "38% of the last 160 rollouts were rejected."
    (back,) = alarms.look(fine(2, rolled_back=[{"version": 9, "to": 6}]))
    assert "version 9 has the weights of version 6" in back.sentence
    assert not back.active
    assert kinds(alarms.shown()) == ["rolled_back"]
    assert alarms.look(fine(3, rolled_back=[{"version": 12, "to": 6}])) == []  # rate-limited
    alarms.look(fine(4000))
    assert alarms.shown() == []


def test_alerts_reach_a_program_and_a_url(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            while b"}" not in b"".join(got):
                got.append(await stream.receive_some())
            await stream.send_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                port = listener.socket.getsockname()[1]
                nursery.start_soon(trio.serve_listeners, answer, [listener])
                program = ("/bin/sh", "-c", f"cat > {tmp_path}/alert")
                url = f"http://127.0.0.1:{port}/hook"
                delivery = Delivery(AlertsSection(webhook=url, command=program), "my-run")
                delivery.send(Alert(kind="disk", sentence="full", since=1.0, active=True))
                delivery.close()
                await delivery.run()
                nursery.cancel_scope.cancel()

    trio.run(main)
    told = json.loads((tmp_path / "alert").read_text())
    alert = {"kind": "disk", "sentence": "full", "since": 1.0, "active": True}
    assert told == {"run": "my-run", **alert}
    assert b"POST /hook" in b"".join(got)
    assert b'"run":"my-run"' in b"".join(got)


async def taken(feed: Feed, after: int | None, count: int) -> list[bytes]:
    found = []
    stream = feed.watch(after)
    async for piece in stream:
        found.append(piece)
        if len(found) == count:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    return found


def test_a_watcher_goes_on_behind_what_it_has_seen() -> None:
    async def main() -> None:
        feed = Feed(100)
        for number in range(3):
            feed.post("event", b"%d" % number)
        first, rest = await taken(feed, 101, 2)
        assert first == b"id: 101\nevent: ping\ndata: {}\n\n"
        assert rest == b"id: 102\nevent: event\ndata: 1\n\nid: 103\nevent: event\ndata: 2\n\n"
        for strange in (99, 500):  # older than all that is kept, and from another time
            assert (await taken(feed, strange, 1))[0].startswith(b"id: 103\nevent: reset")
        assert feed.watchers == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_watcher_that_falls_behind_is_let_go_and_costs_nothing() -> None:
    async def main() -> None:
        feed = Feed(0)
        stream = feed.watch(None)
        await anext(stream)
        for number in range(KEPT + 10):
            feed.post("event", b"%d" % number)
            feed.post("overview", b"%d" % number)
        assert len(feed._frames) == KEPT
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        again = feed.watch(None)
        await anext(again)
        assert await anext(again) == b"event: overview\ndata: %d\n\n" % (KEPT + 9)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_quiet_stream_is_kept_alive() -> None:
    async def main() -> None:
        feed = Feed(0)
        stream = feed.watch(None)
        await anext(stream)
        began = trio.current_time()
        assert await anext(stream) == b"event: ping\ndata: {}\n\n"
        assert trio.current_time() - began == PING_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, stream)
            await wait_all_tasks_blocked()
            feed.post("event", b"1")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_recent_counts_are_differences() -> None:
    samples = Samples()
    assert samples.over(10).rate == 0.0
    for second in range(20):
        samples.add(float(second), 5 * second, {"stale": second, "banned": 0})
    recent = samples.over(10)
    assert (recent.seconds, recent.accepted, recent.rejected) == (10.0, 50, {"stale": 10})
    assert recent.rate == 5.0
    assert recent.share_rejected == pytest.approx(1 / 6)


def test_the_page_knows_which_codes_are_faults() -> None:
    script = (ASSETS / "js" / "reasons.js").read_text(encoding="utf-8")
    listed = re.search(r"FAULTS = new Set\(\[(.*?)\]\)", script, re.DOTALL)
    advised = re.search(r"ADVICE = \{(.*?)\n\};", script, re.DOTALL)
    assert listed is not None
    assert advised is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == {str(code) for code in FAULTS}
    assert set(re.findall(r"^  (?!__proto__)(\w+):", advised[1], re.MULTILINE)) <= {*map(str, Code)}


def test_the_page_weighs_little() -> None:
    files = [one for one in ASSETS.rglob("*") if one.suffix in SERVED | {".html"}]
    assert sum(len(gzip.compress(one.read_bytes())) for one in files) < 400_000
