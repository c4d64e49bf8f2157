"""`echo-hub trace`: one rollout's life, from its lease to the update it was trained on in."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import Any

from echo_hub.commands.status import moment, run_folder
from echo_hub.ledger.trace import Life, read_life
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import ConfigError
from echo_p2p.identity import peer_id_of
from echo_p2p.wire import Submission, unpack_logprobs, unpack_tokens


def trace_rollout(root: Path, name: str) -> dict[str, Any]:
    """What became of a group, or of one rollout of it (`<trace id>.<number>`), as JSON values.

    Raises:
        ConfigError: the run, the trace id or the rollout is unknown.
        LedgerError: the ledger cannot be read.
    """
    trace, _, number = name.partition(".")
    life = read_life(run_folder(root).ledger, trace)
    rollouts = _rollouts(life)
    if number:
        rollouts = [one for one in rollouts if str(one["number"]) == number]
        if not rollouts:
            raise ConfigError(
                f"{life.trace} has no rollout {number}.",
                fix="It was never answered." if life.envelope is None else "They count from 0.",
            )
    return {
        "trace": life.trace,
        "group": life.group,
        "node": peer_id_of(life.node),
        "split": life.split,
        "prompt_index": life.prompt_index,
        "state": life.state,
        "version": life.version,
        "steps": [
            {"what": step.what, "at": step.at, "sentence": step.sentence, **step.facts}
            for step in life.steps
        ],
        "rollouts": rollouts,
        "same_prompt": life.others,
    }


def _rollouts(life: Life) -> list[dict[str, Any]]:
    if life.envelope is None:
        return []
    submission = open_envelope(life.envelope, Submission, key=life.node).message
    found = []
    for number, rollout in enumerate(submission.rollouts):
        logprobs = unpack_logprobs(rollout.logprobs)
        found.append(
            {
                "number": number,
                "tokens": len(unpack_tokens(rollout.tokens)),
                "finish": rollout.finish,
                "mean_logprob": round(fmean(logprobs), 4),
                "reward": None if life.rewards is None else life.rewards[number],
            }
        )
    return found


def render_trace(life: dict[str, Any]) -> None:
    """Print it: a line a step, and a table of the rollouts."""
    from rich.console import Console
    from rich.table import Table

    console, now = Console(soft_wrap=True), time.time()
    console.print(f"{life['trace']} of {life['node']}", markup=False, highlight=False)
    steps = Table(show_header=False, box=None)
    steps.add_column(no_wrap=True)
    for step in life["steps"]:
        steps.add_row("" if step["at"] is None else moment(step["at"], now), step["sentence"])
    console.print(steps, markup=False, highlight=False)
    if life["rollouts"]:
        table = Table(box=None)
        for name in ("rollout", "tokens", "finish", "mean log-prob", "reward"):
            table.add_column(name, justify="right")
        for one in life["rollouts"]:
            reward = "-" if one["reward"] is None else f"{one['reward']:g}"
            table.add_row(
                str(one["number"]),
                str(one["tokens"]),
                one["finish"],
                f"{one['mean_logprob']:.3f}",
                reward,
            )
        console.print(table)
    if life["same_prompt"]:
        console.print(f"The same prompt was also leased as {', '.join(life['same_prompt'])}.")
