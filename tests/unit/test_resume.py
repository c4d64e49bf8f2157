"""A pause outlives the hub, and `echo-hub resume` ends it; versions taken back stay so."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from echo_hub.commands.presets import preset
from echo_hub.commands.resume import resume_run
from echo_hub.commands.status import read_status, rows_of
from echo_hub.commands.template import render_config
from echo_hub.ledger.guard import ROLLED_BACK_TO, GuardState, Pause
from echo_hub.ledger.ledger import Ledger
from echo_p2p.errors import LedgerError

PAUSE = Pause(version=4, why="3 updates in a row were refused.", at=1000.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    config = preset("addmix3", run_id="test", overrides={})
    (tmp_path / "run.toml").write_text(render_config(config), encoding="utf-8")
    return tmp_path


async def with_ledger(root: Path, *, pause: Pause | None = None) -> GuardState:
    async with Ledger.open(root / "ledger.sqlite", "test") as ledger:
        if (await ledger.recover()).version is None:
            await ledger.begin()
            for version in (1, 2, 3):
                await ledger.commit_update(version, [], {"loss": 0.1})
            await ledger.commit_update(4, [], {ROLLED_BACK_TO: 1.0})
            await ledger.record_event(
                "update_refused", version=5, why="mismatch", sentence="its nodes differ.", groups=[]
            )
        if pause is not None:
            await ledger.pause(pause)
        return (await ledger.recover()).guard


def test_a_pause_stays_until_an_operator_ends_it(root: Path) -> None:
    assert trio.run(with_ledger, root) == GuardState(withdrawn=frozenset({2, 3}))
    with pytest.raises(LedgerError, match="not paused"):
        resume_run(root)

    async def paused() -> None:
        await with_ledger(root, pause=PAUSE)

    trio.run(paused)
    facts = read_status(root)
    assert facts["paused"] == {"version": 4, "why": PAUSE.why, "at": 1000.0}
    assert facts["updates_refused"] == {"mismatch": 1}
    assert facts["last_refusal"] == "its nodes differ."
    shown = dict(rows_of(facts, now=1060.0))["paused"]
    assert shown.startswith("since 1970-01-01")
    assert shown.endswith("(60 s ago), at version 4: 3 updates in a row were refused.")

    assert trio.run(with_ledger, root).pause == PAUSE
    assert resume_run(root) == 4
    state = trio.run(with_ledger, root)
    assert (state.pause, state.resumed_at) == (None, 4)
    assert read_status(root)["paused"] is None
    with pytest.raises(LedgerError, match="not paused"):
        resume_run(root)
