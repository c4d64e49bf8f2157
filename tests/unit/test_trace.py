"""`echo-hub trace`: a rollout's life as the ledger has it, for each way it may end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from echo_hub.cli import app
from echo_hub.commands.presets import preset
from echo_hub.commands.template import render_config
from echo_hub.commands.trace import render_trace, trace_rollout
from echo_hub.ledger.guard import REFUSED
from echo_hub.ledger.ledger import Ledger
from echo_hub.ledger.trace import SPOILT
from echo_hub.paths import RunFolder
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import Record
from echo_p2p.envelope import seal
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import Rollout, Submission, pack_logprobs, pack_tokens

NODE = Identity.from_seed(b"t" * 32)
CONSUMED, DROPPED, SPOILED, OPEN, AGAIN, REFUSED_ONE, WAITING = (f"{n:02x}" * 16 for n in range(7))


def lease(trace: str, index: int) -> OpenLease:
    return OpenLease(
        lease_id=bytes.fromhex(trace),
        node=NODE.public_key,
        split="train",
        index=index,
        group_size=2,
        seed=7,
        min_version=0,
        max_version=None,
        issued_at=1000.0,
        expires_at=1060.0,
    )


def answer(trace: str) -> bytes:
    rollouts = tuple(
        Rollout(tokens=pack_tokens([5, 6, 2]), logprobs=pack_logprobs(logprobs), finish="stop")
        for logprobs in ([-0.5, -0.25, 0.0], [-1.0, -1.0, -1.0])
    )
    return seal(
        NODE, Submission(run_id="run", lease_id=bytes.fromhex(trace), version=3, rollouts=rollouts)
    )


async def fill(folder: RunFolder) -> None:
    now = iter(range(2000, 3000))
    async with Ledger.open(folder.ledger, "run", clock=lambda: float(next(now))) as ledger:

        async def add(trace: str, index: int) -> int:
            one = lease(trace, index)
            await ledger.add_leases([one])
            return await ledger.add_group(
                one, version=3, rollouts=2, tokens=6, envelope=answer(trace)
            )

        await ledger.begin()
        consumed = await add(CONSUMED, 4)
        await ledger.set_scored(consumed, [1.0, 0.0], audited=True)
        await ledger.commit_update(5, [consumed], {})
        await ledger.record_publication(5, b"manifest")
        dropped = await add(DROPPED, 5)
        await ledger.drop_groups([dropped], Code.STALE)
        await ledger.record_event("group_dropped", group=dropped, code="stale", why="too late.")
        await ledger.add_leases([lease(SPOILED, 6)])
        await ledger.release_leases([lease(SPOILED, 6)])
        await ledger.record_event(
            SPOILT,
            lease=SPOILED,
            node=peer_id_of(NODE.public_key),
            code="bad_tokens",
            why="no such token.",
        )
        await ledger.add_leases([lease(AGAIN, 6), lease(OPEN, 7)])
        refused = await add(REFUSED_ONE, 8)
        await ledger.set_scored(refused, [1.0, 0.0])
        await ledger.record_event(
            REFUSED, version=6, why="mismatch", sentence="far off.", groups=[99, refused], false=[]
        )
        await ledger.commit_update(6, [refused], {})
        await ledger.ban(NODE.public_key, Record(0.0, 0.0, "a lie"), group_ids=[])
        await add(WAITING, 9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.config.write_text(render_config(preset("addmix3", run_id="run", overrides={})))
    trio.run(fill, folder)
    return folder.root


def steps(run: Path, name: str) -> list[str]:
    return [step["what"] for step in trace_rollout(run, name)["steps"]]


def test_from_lease_to_update(run: Path) -> None:
    life = trace_rollout(run, CONSUMED[:6])
    assert life["trace"] == CONSUMED
    assert life["node"] == peer_id_of(NODE.public_key)
    assert [step["what"] for step in life["steps"]] == [
        "leased", "submitted", "scored", "audited", "consumed", "published",
    ]  # fmt: skip
    at = [step["at"] for step in life["steps"] if step["at"] is not None]
    assert at == sorted(at)
    assert at[0] == 1000.0
    consumed = life["steps"][4]
    assert (consumed["version"], consumed["lag"]) == (5, 1)
    assert [one["reward"] for one in life["rollouts"]] == [1.0, 0.0]
    assert [one["mean_logprob"] for one in life["rollouts"]] == [-0.25, -1.0]


def test_one_rollout_and_the_number_of_a_group(run: Path) -> None:
    one = trace_rollout(run, f"{CONSUMED}.1")
    assert [rollout["number"] for rollout in one["rollouts"]] == [1]
    assert trace_rollout(run, f"g{one['group']}")["trace"] == CONSUMED
    with pytest.raises(ConfigError, match="has no rollout 2"):
        trace_rollout(run, f"{CONSUMED}.2")
    with pytest.raises(ConfigError, match=r"no rollout 0\. It was never answered"):
        trace_rollout(run, f"{OPEN}.0")


@pytest.mark.parametrize(
    ("trace", "last", "says"),
    [
        (DROPPED, "dropped", "too late"),
        (SPOILED, "refused", "no such token"),
        (OPEN, "leased", "Leased"),
        (WAITING, "waiting", "Waits for its reward"),
    ],
)
def test_other_ends(run: Path, trace: str, last: str, says: str) -> None:
    end = trace_rollout(run, trace)["steps"][-1]
    assert end["what"] == last
    assert says in end["sentence"]


def test_a_prompt_that_was_leased_again_and_a_disputed_group(run: Path) -> None:
    assert trace_rollout(run, SPOILED)["same_prompt"] == [AGAIN]
    life = ["leased", "submitted", "scored", "update_refused", "consumed", "disputed"]
    assert steps(run, REFUSED_ONE) == life
    assert "disputed" not in steps(run, CONSUMED)  # it was audited


@pytest.mark.parametrize("name", ["", "zz" * 16, "00000", "0" * 33, "g", "g9", "ff" * 16, "\x1b["])
def test_names_of_nothing(run: Path, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        trace_rollout(run, name)
    assert error.value.fix


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(app, ["trace", str(run), CONSUMED, "--json"])
    assert json.loads(done.stdout)["trace"] == CONSUMED
    life: dict[str, Any] = trace_rollout(run, DROPPED)
    render_trace(life)
    assert "Left out: too late." in capsys.readouterr().out
