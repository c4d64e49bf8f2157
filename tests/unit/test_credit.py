"""Credit: the hub states what its ledger says, people stand behind machines, anyone can check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_ledger import lease, with_ledger

from echo_hub.ledger.credit import Given, Leader, leaders
from echo_hub.ledger.ledger import Ledger
from echo_hub.ledger.schema import open_engine
from echo_hub.rollouts.credit import EARLY_S, FRESH_S, Credits
from echo_hub.rollouts.reputation import Record
from echo_node.commands.identity import export_key, import_key, name_person, show
from echo_node.paths import NodeFolder
from echo_node.people import vouch, vouched_for
from echo_node.statements import Statement, checked, open_statement, read_statement, render
from echo_p2p.envelope import seal
from echo_p2p.errors import ConfigError, IdentityError, PeerRefusedError, SignatureError
from echo_p2p.identity import Identity
from echo_p2p.wire import Introduce, Rollout, Submission, pack_tokens, sampled_tokens

HUB, PERSON = Identity.create(), Identity.create()
MACHINES = [Identity.create() for _ in range(3)]
PASSPHRASE = "correct horse battery"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_credits(path: Path, body: Callable[[Ledger, Credits, Clock], Awaitable[None]]) -> None:
    clock = Clock()

    async def inner(ledger: Ledger) -> None:
        desk = Credits(run_id="run", identity=HUB, ledger=ledger, clock=clock)
        await body(ledger, desk, clock)

    with_ledger(path, inner)


async def give(ledger: Ledger, number: int, node: bytes, tokens: int) -> int:
    one = lease(number, node=node)
    await ledger.add_leases([one])
    return await ledger.add_group(one, version=0, rollouts=2, tokens=tokens, envelope=b"e")


async def stated(desk: Credits, node: bytes) -> Statement:
    reply = await desk.statement(node)
    return open_statement(reply.credit, hub=HUB.public_key)


def introduction(machine: Identity, name: str, *, at: float = 1000.0) -> Introduce:
    return Introduce(run_id="run", voucher=vouch(PERSON, machine.public_key, name, now=at))


def test_counted_is_what_was_accepted_and_not_disputed(tmp_path: Path) -> None:
    node = MACHINES[0].public_key

    async def body(ledger: Ledger, desk: Credits, clock: Clock) -> None:
        assert (await stated(desk, node)).credit.tokens == 0
        ids = [await give(ledger, number, node, 10**number) for number in range(5)]
        await give(ledger, 9, MACHINES[1].public_key, 777)
        await ledger.set_scored(ids[0], [1.0, 0.0])
        await ledger.set_scored(ids[1], [1.0, 0.0], audited=True)
        await ledger.set_scored(ids[2], [1.0, 0.0])
        await ledger.drop_groups([ids[3]], "audit_margin")
        clock.now += FRESH_S + 1
        credit = (await stated(desk, node)).credit  # ids[4] is not scored yet
        assert (credit.groups, credit.rollouts, credit.tokens) == (3, 6, 111)
        assert credit.audited_tokens == 10
        assert (credit.since, credit.at) == (1.0, clock.now)
        await ledger.commit_update(1, [ids[0], ids[1]], {})
        await ledger.ban(node, Record(banned="it lied"))
        clock.now += FRESH_S + 1
        assert (await stated(desk, node)).credit.tokens == 10  # the audited one stands

    with_credits(tmp_path / "ledger.sqlite", body)


def test_a_statement_is_not_made_anew_for_each_that_asks(tmp_path: Path) -> None:
    node = MACHINES[0].public_key

    async def body(ledger: Ledger, desk: Credits, clock: Clock) -> None:
        first = await desk.statement(node)
        await ledger.set_scored(await give(ledger, 1, node, 5), [0.0, 0.0])
        assert await desk.statement(node) == first
        clock.now += FRESH_S + 1
        assert (await stated(desk, node)).credit.tokens == 5
        clock.now = 1.0  # set back
        assert (await stated(desk, node)).credit.at == 1.0

    with_credits(tmp_path / "ledger.sqlite", body)


def test_a_person_stands_behind_machines_and_on_the_leader_board(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def body(ledger: Ledger, desk: Credits, clock: Clock) -> None:
        for number, machine in enumerate(MACHINES):
            group = await give(ledger, number, machine.public_key, 10 + number)
            await ledger.set_scored(group, [1.0, 1.0], audited=number == 0)
        for machine in MACHINES[:2]:
            await desk.introduce(machine.public_key, introduction(machine, "Ada"))
        credit = (await stated(desk, MACHINES[0].public_key)).credit
        assert (credit.person, credit.name) == (PERSON.public_key, "Ada")
        older = introduction(MACHINES[0], "Old", at=900.0)
        await desk.introduce(MACHINES[0].public_key, older)
        assert (await stated(desk, MACHINES[0].public_key)).credit.name == "Ada"

    with_credits(path, body)
    with open_engine(path, read_only=True).connect() as connection:
        assert leaders(connection, 10) == [
            Leader(PERSON.public_key, "Ada", 2, Given(2, 4, 21, 10)),
            Leader(MACHINES[2].public_key, "", 1, Given(1, 2, 12, 0)),
        ]
        assert len(leaders(connection, 1)) == 1


_voucher = introduction(MACHINES[0], "Ada").voucher
FORGED = _voucher[:-1] + bytes([_voucher[-1] ^ 1])


@pytest.mark.parametrize(
    "said",
    [
        introduction(MACHINES[1], "Ada"),
        introduction(MACHINES[0], "Ada", at=1000.0 + EARLY_S + 1),
        Introduce(run_id="run", voucher=b"nothing"),
        Introduce(run_id="run", voucher=FORGED),
    ],
    ids=["of another machine", "from the future", "no envelope", "false signature"],
)
def test_nobody_else_can_put_a_name_on_a_machine(tmp_path: Path, said: Introduce) -> None:
    async def body(ledger: Ledger, desk: Credits, clock: Clock) -> None:
        with pytest.raises(PeerRefusedError):
            await desk.introduce(MACHINES[0].public_key, said)
        assert await ledger.voucher_of(MACHINES[0].public_key) is None

    with_credits(tmp_path / "ledger.sqlite", body)


@pytest.mark.parametrize("name", ["a" * 41, "two\nlines", "right\u202eto left", "\x1b[2J"])
def test_an_impossible_name_is_refused_at_home(name: str) -> None:
    with pytest.raises(IdentityError, match="cannot be a name"):
        vouch(PERSON, MACHINES[0].public_key, name, now=1.0)


def test_observed_tokens_are_nobodys_credit() -> None:
    rollout = Rollout(
        tokens=pack_tokens(range(10)), logprobs=b"", finish="stop", observed=((2, 4), (6, 9))
    )
    assert sampled_tokens(rollout) == 5


@pytest.fixture(scope="module")
def envelope(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made: list[bytes] = []

    async def body(ledger: Ledger, desk: Credits, clock: Clock) -> None:
        made.append((await desk.statement(MACHINES[0].public_key)).credit)

    with_credits(tmp_path_factory.mktemp("credit") / "ledger.sqlite", body)
    return made[0]


def test_anyone_can_check_a_statement(tmp_path: Path, envelope: bytes) -> None:
    statement = open_statement(envelope)
    file = tmp_path / "credit.txt"
    file.write_text("From: me\n\n" + render(envelope, statement) + "\nBye\n")
    assert read_statement(file) == statement == checked(file, HUB.peer_id)
    with pytest.raises(ConfigError, match="not by"):
        checked(file, PERSON.peer_id)


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_a_statement_that_was_changed_is_false(tmp_path: Path, envelope: bytes, at: int) -> None:
    changed = bytearray(envelope)
    changed[at % len(changed)] ^= 1
    file = tmp_path / "credit.txt"
    file.write_text(render(bytes(changed), open_statement(envelope)))
    with pytest.raises(ConfigError, match="false"):
        read_statement(file)


@pytest.mark.parametrize("text", ["", "-----BEGIN ECHO-P2P CREDIT-----\n", "x" * 20_000, "\x00"])
def test_what_is_no_statement_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "credit.txt").write_text(text)
    with pytest.raises(ConfigError, match="holds no statement"):
        read_statement(tmp_path / "credit.txt")


def test_a_signature_for_something_else_is_no_statement() -> None:
    other = Submission(run_id="run", lease_id=bytes(16), version=0, rollouts=())
    with pytest.raises((SignatureError, Exception), match="not a Credit"):
        open_statement(seal(HUB, other))


# --- one person, several machines ---------------------------------------------------------------


def test_a_persons_key_goes_from_machine_to_machine(tmp_path: Path) -> None:
    home, laptop = NodeFolder(tmp_path / "home"), NodeFolder(tmp_path / "laptop")
    first = name_person(home, "Ada")
    assert export_key(home, tmp_path / "ada.key", "person", PASSPHRASE) == first["person"]
    assert import_key(laptop, tmp_path / "ada.key", PASSPHRASE) == (first["person"], "person")
    second = name_person(laptop, "Ada")
    assert second["person"] == first["person"]
    assert second["node"] != first["node"]
    assert vouched_for(laptop, first["node"]) is None  # it vouches for that machine alone
    vouched = vouched_for(laptop, second["node"])
    assert vouched is not None
    assert vouched.name == "Ada"


def test_a_machines_key_survives_a_reinstallation(tmp_path: Path) -> None:
    old, new = NodeFolder(tmp_path / "old"), NodeFolder(tmp_path / "new")
    node = show(old)["node"]
    assert not show(old)["exported"]
    export_key(old, tmp_path / "machine.key", "machine", PASSPHRASE)
    assert show(old)["exported"]
    import_key(new, tmp_path / "machine.key", PASSPHRASE)
    assert show(new) == {**show(old), "key": str(new.identity)}
    assert new.identity.stat().st_mode & 0o777 == 0o600
    assert node == show(new)["node"]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    one, other = NodeFolder(tmp_path / "one"), NodeFolder(tmp_path / "other")
    show(one), show(other)
    export_key(one, tmp_path / "key", "machine", PASSPHRASE)
    with pytest.raises(IdentityError, match="another key"):
        import_key(other, tmp_path / "key", PASSPHRASE)
    with pytest.raises(IdentityError, match="exists already"):
        export_key(one, tmp_path / "key", "machine", PASSPHRASE)
    with pytest.raises(IdentityError, match="no person's key"):
        export_key(one, tmp_path / "new", "person", PASSPHRASE)
    import_key(one, tmp_path / "key", PASSPHRASE)  # the same again does no harm
