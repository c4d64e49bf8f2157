"""From what a hub sees to who works: the roster, the wishes, and the shell around both."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from test_front import Node as FrontNode
from test_front import World, config

from echo_hub import outward
from echo_hub.activating import Activating, ActivationNow
from echo_hub.api.placing import activation_facts
from echo_hub.commands.presets import preset
from echo_hub.commands.throttled import Throttle, compared, throttled
from echo_hub.config.activation import ActivationSection
from echo_hub.endpoints import Greeted
from echo_hub.learner.client import Spent
from echo_hub.ledger.ledger import Ledger
from echo_hub.planner.activation import Decision, Place, Rules
from echo_hub.planner.estimators import Rate
from echo_hub.planner.roster import Roster, name_of, watts_of
from echo_hub.planner.scaling import Scaling, more_nodes
from echo_hub.planner.system import Node, Run
from echo_hub.rollouts.front import Front
from echo_hub.update_facts import UpdateFacts
from echo_p2p.errors import ConfigError
from echo_p2p.identity import peer_id_of
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import LeaseRequest

RUN = Run(groups=16, group_size=8, train_s=1.0, staleness=3, kappa=2)
NEEDED = 4.0  # rollouts a second, with an update of 32 s


def traits(key: bytes) -> tuple[float, float]:
    return 0.0, 100.0 + key[0]


class Live:
    """A roster in a run of which time passes; a node of rate r answers a group every 8 / r s."""

    def __init__(self, rates: dict[bytes, float], *, mode: str = "on", **rules: Any) -> None:
        self.roster = Roster(RUN, Rules(**rules), mode=mode, most=32, limit=lambda _: 32)  # type: ignore[arg-type]
        self.rates = rates
        self.here = set(rates)
        self.now = 1000.0
        self.rng = random.Random(1)

    def update(self, train_s: float = 32.0, idle_s: float = 0.0) -> None:
        self.roster.trained(train_s, train_s + idle_s)

    def work(self, seconds: float) -> None:
        """Those who may, work for so long."""
        for key in self.here:
            if self.roster.allows(key):
                self.roster.asked(key, 4, self.now)
                each = 8 / self.rates[key]
                for number in range(1, int(seconds / each) + 1):
                    self.roster.answered(
                        key, rollouts=8, held=4, issued_at=self.now, now=self.now + number * each
                    )
        self.now += seconds

    def look(self) -> set[bytes]:
        self.roster.look(self.here, traits, self.now)
        return {key for key in self.here if self.roster.allows(key)}


def key(number: int) -> bytes:
    return bytes([number]) * 32


def test_all_work_until_they_are_measured_and_then_the_thriftiest_that_suffice() -> None:
    live = Live({key(i): 1.0 for i in range(8)}, dwell_s=0, settle_s=0)
    assert live.roster.look(live.here, traits, live.now) is None  # T_train is not known
    assert live.look() == live.here
    live.update()
    assert live.look() == live.here  # on trial
    assert live.roster.decision is not None
    assert (live.roster.decision.on_trial, live.roster.decision.missing) == (8, "")
    live.work(120)
    assert live.look() == {key(i) for i in range(5)}  # 4 rollouts/s and a head-room of .15
    looked = live.roster.look(live.here, traits, live.now)
    assert looked is not None
    assert (looked.to_work, looked.to_standby) == (set(), set())
    told = live.roster.standby(key(7), live.now)
    assert told is not None
    assert "others generate" in told.sentence
    assert told.until is not None
    assert live.roster.standby(key(0), live.now) is None


def test_advice_keeps_nobody_from_work() -> None:
    live = Live({key(i): 1.0 for i in range(8)}, mode="advise", dwell_s=0, settle_s=0)
    live.update()
    live.look()
    live.work(120)
    assert live.look() == live.here
    assert live.roster.decision is not None
    assert len(live.roster.decision.active) == 5


def test_a_newcomer_works_and_one_that_leaves_is_replaced_at_once() -> None:
    live = Live({key(i): 1.0 for i in range(8)}, settle_s=0)
    live.update()
    live.look()
    live.work(400)
    assert live.look() == {key(i) for i in range(5)}
    live.here.discard(key(0))
    live.now += 61  # what it asked last is long ago
    assert live.look() == {key(i) for i in range(1, 6)}
    live.rates[key(9)] = 1.0
    live.here.add(key(9))
    assert live.roster.allows(key(9))  # even before the next look
    assert key(9) in live.look()


def test_a_node_too_slow_for_the_bound_stands_by_and_is_tried_again() -> None:
    live = Live({key(0): 1.0, key(1): 0.05}, turn_s=600)
    live.update()
    live.look()
    live.work(400)
    assert live.look() == {key(0)}
    told = live.roster.standby(key(1), live.now)
    assert told is not None
    assert "longer than the run can wait" in told.sentence
    live.now += 700
    for _ in range(3):
        live.roster.asked(key(0), 4, live.now)
        found = live.look()
    assert found == {key(0), key(1)}


def test_every_volunteer_has_its_turn() -> None:
    live = Live({key(i): 2.0 for i in range(8)}, dwell_s=60, settle_s=0, turn_s=300)
    live.update()
    live.look()
    had: set[bytes] = set()
    for _ in range(120):
        live.work(30)
        had |= live.look()
    live.rates = dict.fromkeys(live.rates, 2.0)
    assert had == live.here
    since = dict.fromkeys(live.here, 0)
    longest = 0
    for _ in range(240):
        live.work(30)
        at_work = live.look()
        for one in live.here:
            since[one] = 0 if one in at_work else since[one] + 30
        longest = max(longest, *since.values())
    assert longest <= 3 * 300 + 60  # 8 nodes, 3 places


def test_a_node_that_is_given_little_is_not_taken_for_a_slow_one() -> None:
    card, processor = Rate(), Rate()
    for _ in range(40):  # two of eight groups: 10 s for both, as all eight would take
        card.add(8, 10.0, 2 / 8)
        card.add(8, 0.0, 1 / 8)
        processor.add(8, 10.0, 1.0)
    assert card.value == pytest.approx(3.2)  # between 1.6 and 6.4
    assert processor.value == pytest.approx(0.8)
    for _ in range(40):  # now it is full
        card.add(64, 10.0, 1.0)
    assert card.value == pytest.approx(6.4)
    for _ in range(40):  # and has little again: what is known stays
        card.add(8, 10.0, 2 / 8)
        card.add(8, 0.0, 1 / 8)
    assert card.value == pytest.approx(6.4)


@settings(max_examples=50)
@given(
    seconds=st.lists(st.one_of(st.floats(0, 1e9), st.floats(-1e9, 0)), min_size=1, max_size=20),
    held=st.integers(0, 100),
)
def test_no_clock_and_no_answer_stops_the_roster(seconds: list[float], held: int) -> None:
    live = Live({key(0): 1.0, key(1): 2.0})
    live.update()
    for step in seconds:
        live.roster.asked(key(0), 4, live.now + step)
        live.roster.answered(key(0), rollouts=8, held=held, issued_at=live.now, now=live.now + step)
        live.roster.fetched(key(0), step)
        live.roster.trained(step, abs(step))
        live.now += step
        live.look()
    live.roster.judged(0, 0)
    live.roster.judged(5, 1000)
    assert key(1) in live.look()


def test_estimates_that_jump_by_a_thousand_switch_nobody() -> None:
    live = Live({key(i): 1.0 for i in range(8)}, settle_s=0)
    for _ in range(4):
        live.update()
    live.look()
    live.work(400)
    before = live.look()
    live.update(32_000.0)
    assert live.look() == before
    live.update(0.032)
    assert live.look() == before


def test_a_card_is_known_by_its_name() -> None:
    table = {"rtx 4090": 450.0, "rtx 4090 d": 425.0}
    assert watts_of("vllm 0.32 on NVIDIA GeForce RTX 4090 D", table) == 425
    assert watts_of("torch 2.13 on cpu", table) == 0


def test_ten_thousand_nodes_are_looked_at_in_less_than_they_would_take_one_by_one() -> None:
    """Work of a look that nothing happened before: no node is made anew, no queue is sorted."""
    keys = [number.to_bytes(32, "big") for number in range(10_000)]
    live = Live(dict.fromkeys(keys, 1.0))
    live.update()
    made: list[bytes] = []

    def counted(one: bytes) -> tuple[float, float]:
        made.append(one)
        return 0.0, 0.0

    live.roster.look(keys, counted, live.now)
    assert len(made) == 10_000
    live.roster.asked(keys[3], 2, live.now)
    live.roster.look(keys, counted, live.now + 1)
    assert made[10_000:] == [keys[3]]
    live.roster.repriced()
    live.roster.look(keys, counted, live.now + 2)
    assert len(made) == 20_001


# --- wishes -----------------------------------------------------------------------------------


def place(name: str, *, active: bool, price: float = 1.0, speed: float = 1.0) -> Place:
    node = Node(name, 0.0, price=price)
    return Place(node, active, False, speed, in_time=True, changed_s=0.0, turn_s=None)


def decision(missing: str = "", rate: float = 2.0, on_trial: int = 0) -> Decision:
    return Decision(frozenset({"a", "b"}), 4.0, rate, 0.0, missing, on_trial=on_trial, wanted=4.6)


def test_more_nodes_are_wished_for_after_a_while_and_not_again_too_soon() -> None:
    scaling = Scaling(after_s=60, idle_s=600, every_s=300)
    made = [
        (now, wish)
        for now in range(0, 1000, 10)
        if (wish := scaling.look(decision("rate"), [], float(now)))
    ]
    assert [now for now, _ in made] == [60, 360, 660, 960]
    wish = made[0][1]
    assert (wish.wish, wish.nodes, wish.rate_missing) == ("scale_up", 3, pytest.approx(2.6))
    assert "2 rollouts/s are generated and 4 are needed: about 3 more nodes" in wish.sentence
    assert scaling.look(decision("rate"), [], -5e9) is None  # a clock that steps


def test_what_no_node_mends_is_no_wish_and_a_gap_begins_again() -> None:
    scaling = Scaling(after_s=60, idle_s=600, every_s=300)
    for now in range(0, 200, 10):
        assert scaling.look(decision("latency"), [], float(now)) is None
    for now in range(200, 2000, 10):
        missing = "" if now % 50 == 0 else "rate"
        assert scaling.look(decision(missing), [], float(now)) is None


def test_rented_nodes_that_idle_are_named_and_volunteers_never() -> None:
    scaling = Scaling(after_s=60, idle_s=600, every_s=300)
    made = [
        (now, wish)
        for now in range(0, 700, 10)
        if (wish := scaling.look(decision(rate=5.0), ["idles"], float(now)))
    ]
    assert [(now, wish.wish, wish.keys) for now, wish in made] == [(600, "scale_down", ("idles",))]
    for now in range(700, 1500, 10):  # nobody is let go while somebody is tried out
        assert scaling.look(decision(rate=5.0, on_trial=1), ["idles"], float(now)) is None
    assert scaling.look(decision(rate=5.0), [], 1600.0) is None
    assert more_nodes(replace(decision("rate"), active=frozenset())) == 1
    assert more_nodes(decision(rate=9.0)) == 1


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("", True),
        ("https://example.org/hook", True),
        ("http://127.0.0.1:8000/x", True),
        ("http://[::1]:8000/x", True),
        ("http://localhost/x", True),
        ("http://example.org/hook", False),
        ("file:///etc/passwd", False),
        ("https://", False),
        ("https://a b", False),
        ("http://127.0.0.1:99999999/", False),
    ],
)
def test_wishes_are_posted_safely_or_not_at_all(url: str, fine: bool) -> None:
    if fine:
        ActivationSection(scale_webhook=url)
    else:
        with pytest.raises(ValueError, match="scale_webhook"):
            ActivationSection(scale_webhook=url)


# --- in a hub ---------------------------------------------------------------------------------


def activating(world: World, front: Front, ledger: Ledger, there: list[FrontNode]) -> Activating:
    greeted = {
        peer_id_of(one.key): Greeted(one.key, (), world.now, engine="torch on cpu") for one in there
    }
    return Activating(
        config=world.config,
        root=world.path,
        front=front,
        ledger=ledger,
        dissemination=SimpleNamespace(),  # type: ignore[arg-type]
        in_session=lambda: list(greeted),
        greeted=greeted.get,
        clock=lambda: world.now,
    )


async def hand_in(front: Front, node: FrontNode, world: World, seconds: float) -> None:
    """A group, so long after its lease."""
    (lease,) = await node.leases(1)
    world.now += seconds
    assert (await node.submit(node.answer(lease))).accepted


def live_world(path: Path, **section: Any) -> World:
    usual = {"mode": "on", "dwell_s": 0, "settle_s": 0, "scale_after_s": 0, "scale_every_s": 1}
    return World(
        path,
        config(
            activation=usual | section,
            learner={"groups_per_update": 64, "staleness": 2},
            lease={"seconds": 1000.0, "newcomer_share": 1.0},
        ),
    )


def test_a_node_on_standby_gets_no_lease_is_told_why_and_takes_over(tmp_path: Path) -> None:
    world = live_world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        first, second = FrontNode(front, "first"), FrontNode(front, "second")
        (tmp_path / "prices.toml").write_text(f'[prices]\n"{peer_id_of(second.key)}" = 2.5\n')
        shell = activating(world, front, ledger, [first, second])
        await shell.look()
        front.roster.trained(600.0, 600.0)  # 128 rollouts in 600 s: .21 a second
        await shell.look()
        for node in (first, second):
            for _ in range(3):
                await hand_in(front, node, world, 3.0)
            await hand_in(front, node, world, 15.0)
            await hand_in(front, node, world, 5.0)
        await shell.look()
        now = shell.now()
        assert {one.node.key: one.active for one in now.places} == {
            name_of(first.key): True,
            name_of(second.key): False,
        }
        assert sorted(one.node.price for one in now.places) == [0.0, 2.5]
        assert await second.leases(1) == []
        told = front.why_no_work(second.key)
        assert told.standby
        assert "takes over" in told.sentence
        assert not front.why_no_work(first.key).standby
        assert len(await first.leases(2)) == 2
        events = [one for one in await ledger_events(ledger) if one[0] == "nodes_activated"]
        assert [one[1]["to_standby"] for one in events] == [[peer_id_of(second.key)]]

        async with open_nursery() as nursery:  # it waits, and is heard as soon as it may work
            granted: list[int] = []

            async def ask() -> None:
                request = LeaseRequest(run_id="run", version=0, groups=1, wait_s=50)
                granted.append(len((await front.request_leases(second.key, request)).leases))

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await front.farewell(first.key)
            shell._in_session = lambda: [peer_id_of(second.key)]
            world.now += 61
            await shell.look()
        assert granted == [1]

    world.config = world.config.model_copy(
        update={"activation": world.config.activation.model_copy(update={"prices": "prices.toml"})}
    )
    world.run(body)


async def ledger_events(ledger: Ledger) -> list[tuple[str, dict[str, Any]]]:
    import sqlite3

    with sqlite3.connect(ledger.path) as database:
        rows = database.execute("select kind, detail from events order by id").fetchall()
    return [(kind, json.loads(detail)) for kind, detail in rows]


def test_a_wish_reaches_a_program_and_what_fails_is_said(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    world = live_world(
        tmp_path,
        scale_command=["/bin/sh", "-c", f"cat > {said}; exit 3"],
        scale_webhook="http://127.0.0.1:9/nobody",
        prices="no-such-file.toml",
    )

    async def body(front: Front, ledger: Ledger) -> None:
        node = FrontNode(front)
        shell = activating(world, front, ledger, [node])
        await shell.look()
        assert "no-such-file.toml cannot be read" in shell.now().trouble
        front.roster.trained(1.0, 1.0)
        for _ in range(8):
            await hand_in(front, node, world, 3.0)
        with trio.fail_after(60):
            async with open_nursery() as nursery:
                nursery.start_soon(shell._tell)
                await shell.look()
                world.now += 1
                while shell.now().outcome == "":  # noqa: ASYNC110 - of a program that ends
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        now = shell.now()
        assert now.wish is not None
        assert now.wish.wish == "scale_up"
        assert "/bin/sh ended with 3; could not be posted" in now.outcome
        told = json.loads(said.read_text())
        assert (told["run"], told["wish"], told["count"]) == ("run", "scale_up", now.wish.nodes)
        kinds = [kind for kind, _ in await ledger_events(ledger)]
        assert kinds[-2:] == ["scale_up", "scale_failed"]

    world.run(body)


def test_a_program_that_cannot_be_started_is_a_sentence() -> None:
    for command, words in (("/no/such/program", "No such file"), ("/bin/true\0", "null byte")):
        assert words in trio.run(outward.start, [command], "{}")
    assert trio.run(outward.start, ["/bin/true"], "{}") == ""


def test_wrong_prices_change_nothing(tmp_path: Path) -> None:
    world = live_world(tmp_path, prices="prices.toml")

    async def body(front: Front, ledger: Ledger) -> None:
        node = FrontNode(front)
        prices = tmp_path / "prices.toml"
        shell = activating(world, front, ledger, [node])
        prices.write_text(f'[prices]\n"{peer_id_of(node.key)}" = 1.5\n')
        shell._read_prices()
        for wrong in ("[prices]\nx = 1\n", f'[prices]\n"{peer_id_of(node.key)}" = -1\n', "??"):
            prices.write_text(wrong)
            shell._read_prices()
            assert shell.now().trouble
            assert shell._prices == {node.key: 1.5}
        prices.write_text("[prices]\n")
        shell._read_prices()
        assert (shell.now().trouble, shell._prices) == ("", {})

    world.run(body)


@pytest.mark.parametrize(
    ("missing", "mode", "words"),
    [
        ("", "on", "1 of 2 nodes work: 2 rollouts/s of 4 needed."),
        ("", "advise", "1 of 2 nodes would be enough: 2 rollouts/s of 4 needed."),
        ("rate", "on", "Missing: about 2 more nodes like these."),
        ("latency", "on", "a version's way round takes too long. Missing: more staleness"),
    ],
)
def test_what_is_missing_is_said(missing: str, mode: str, words: str) -> None:
    here, away = key(1), key(2)
    places = [
        place(name_of(here), active=True, price=0.0),
        place(name_of(away), active=False, price=2.0),
    ]
    told = replace(decision(missing), active=frozenset({name_of(here)}))
    facts = activation_facts(ActivationNow(mode, told, places))  # type: ignore[arg-type]
    assert facts is not None
    assert words in facts.sentence
    assert (facts.active, facts.standby, facts.missing) == (1, 1, missing)
    assert [(one.node, one.state, one.price) for one in facts.nodes] == [
        (peer_id_of(here), "working", 0.0),
        (peer_id_of(away), "standby", 2.0),
    ]
    assert activation_facts(ActivationNow("on", None, [])) is None


def test_a_throttle_is_what_was_ordered_or_is_refused() -> None:
    ordered = Throttle.parse("3:4,2")
    assert [node.rate for node in ordered.nodes()] == [4.0, 8.0]
    assert ordered.program(1) == ("echo_node.throttle", "2", "16")
    assert Throttle.parse("learner").nodes()[0].rate == 16.0
    for wrong in ("", "3", "3:", "0:1", "3:nan", "3:1,,2", "x:1", "3:1e9"):
        with pytest.raises(ConfigError, match="--throttle"):
            Throttle.parse(wrong)


@pytest.mark.parametrize(
    ("regime", "period_s", "limit", "idle"),
    [("generation", 4, "rate", 0.5), ("learner", 2, "learner", 0)],
)
def test_both_regimes_are_predicted(regime: str, period_s: float, limit: str, idle: float) -> None:
    throttle = Throttle.parse(regime)
    sections: dict[str, dict[str, Any]] = {"run": {}, "learner": {}}
    throttled(sections, throttle)
    run = preset("addmix3", run_id="run", overrides=sections)
    updates = [
        UpdateFacts(number, 0.5, 0.0, 0, period_s - 2.0, 2.0, {}, float(period_s), Spent(2.0, 0.0))
        for number in range(12)
    ]
    found = compared(throttle, run, updates, broadcast_s=0.1, check_s=0.1)
    assert found["limit"] == limit
    assert found["predicted_idle"] == pytest.approx(idle, abs=0.01)
    assert found["measured_idle"] == pytest.approx(idle)
    assert compared(throttle, run, updates[:4], broadcast_s=0.1, check_s=0.1) == {}
