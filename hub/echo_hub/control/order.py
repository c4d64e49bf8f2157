"""Has an action done to a run, from outside its hub.

If a hub serves the run, it is left as a request in the ledger, which the hub looks for each second,
and its outcome is waited for. If none does, what needs no learner is done here, with the ledger
locked as a hub would lock it, and the rest waits in the ledger for the next `echo-hub serve`.
"""

from __future__ import annotations

import time
from pathlib import Path

import trio

from echo_hub.commands.status import run_folder
from echo_hub.config import RunConfig, load_config
from echo_hub.control import actions
from echo_hub.ledger.decisions import Annotation, leave_request, outcome_of
from echo_hub.ledger.guard import Pause
from echo_hub.ledger.ledger import Ledger, is_served, read_paused
from echo_hub.orders import missing_version, sentence_of_pin
from echo_hub.paths import RunFolder
from echo_hub.rollouts.reputation import Reputation
from echo_p2p.errors import ConfigError, LedgerError
from echo_p2p.identity import peer_id_of

ANSWER_S = 15.0
UPDATE_S = 600.0
"""What waits for the end of an update may take so long."""


def order(root: Path, action: actions.Any) -> str:
    """Have an action done to the run in a folder; a sentence that says what was done.

    Raises:
        LedgerError: the hub does not answer, or the ledger cannot be used.
        ConfigError: it cannot be done.
    """
    actions.checked(action)
    folder = run_folder(root)
    if is_served(folder.ledger):
        return ask_the_hub(folder.ledger, action)
    if isinstance(action, actions.RollBack | actions.PublishNow):
        leave_request(folder.ledger, actions.to_json(action))
        return "no hub serves the run: it will be done as soon as one does"
    return trio.run(_do_it, folder, load_config(folder.config), action)


def ask_the_hub(path: Path, action: actions.Any) -> str:
    """Leave a request to the hub that serves a ledger, and wait until it is done."""
    request_id = leave_request(path, actions.to_json(action))
    slow = isinstance(action, actions.PauseRun | actions.RollBack | actions.PublishNow)
    patience_s = UPDATE_S if slow else ANSWER_S
    give_up_at = time.monotonic() + patience_s
    while (outcome := outcome_of(path, request_id)) is None:
        if time.monotonic() > give_up_at:
            raise LedgerError(
                f"the hub that serves the run has not answered within {patience_s:g} s.",
                fix="It will be done as soon as it does, or when it is started again.",
            )
        time.sleep(0.1)
    if outcome.error:
        raise LedgerError(outcome.error, fix=outcome.fix)
    return outcome.sentence


async def _do_it(folder: RunFolder, config: RunConfig, action: actions.Any) -> str:
    pause = read_paused(folder.ledger)
    async with Ledger.open(folder.ledger, config.run.id) as ledger:
        if isinstance(action, actions.NodeAction):
            return await _to_node(ledger, config, action)
        return await _to_run(ledger, folder, pause, action)


async def _to_node(ledger: Ledger, config: RunConfig, action: actions.NodeAction) -> str:
    node, name = action.node, peer_id_of(action.node)
    match action:
        case actions.Ban():
            standings = (await ledger.recover()).standings
            record = Reputation(config.audit, standings).ban(node, time.time(), action.why)
            await ledger.ban(node, record)
            await ledger.record_event("node_banned", node=name, why=action.why)
            return f"banned {name}"
        case actions.Unban():
            await ledger.unban(node)
            await ledger.record_event("node_unbanned", node=name)
            return f"unbanned {name}"
        case actions.Quarantine():
            await ledger.decisions.quarantine(node, action.why)
            await ledger.record_event("node_quarantined", node=name, why=action.why)
            return f"{name} is in quarantine"
        case actions.Release():
            await ledger.decisions.quarantine(node, None)
            await ledger.record_event("node_released", node=name)
            return f"{name} is not in quarantine any more"
        case actions.Annotate():
            await ledger.decisions.annotate(node, Annotation(action.name, action.note))
            return f"{name} is annotated"


async def _to_run(
    ledger: Ledger, folder: RunFolder, pause: Pause | None, action: actions.RunAction
) -> str:
    match action:
        case actions.ResumeRun():
            if pause is None:
                raise LedgerError(
                    "the run is not paused.", fix="`echo-hub status RUN` says how it is."
                )
            await ledger.resume(pause.version)
            await ledger.record_event("resumed", version=pause.version)
            return f"goes on from version {pause.version}"
        case actions.PauseRun():
            if pause is not None:
                raise LedgerError("the run is paused already.")
            version = (await ledger.recover()).version or 0
            await ledger.pause(Pause(version, action.why, time.time()))
            await ledger.record_event("paused", version=version, why=action.why)
            return f"paused at version {version}"
        case actions.Pin() | actions.Unpin():
            pinned = isinstance(action, actions.Pin)
            if pinned and action.version not in folder.kept():
                raise missing_version(action.version, folder.kept())
            await ledger.decisions.pin(action.version, pinned=pinned)
            return sentence_of_pin(action)
    raise ConfigError("that needs the run's hub.", fix="Serve the run first: echo-hub serve")
