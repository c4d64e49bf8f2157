"""`echo-hub status`: a run's facts, read from its ledger without disturbing the hub."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from echo_hub.config import load_config
from echo_hub.paths import RunFolder
from echo_hub.publish.spread import sentence_of
from echo_hub.rollouts.curriculum import PREFIX
from echo_hub.rollouts.evaluation import Evaluated
from echo_p2p.errors import ConfigError

_NAMES = {
    "heldout_reward": "held-out reward",
    "evaluations": "newest evaluation",
    "last_update_at": "last update",
}


def run_folder(root: Path) -> RunFolder:
    """The run in a folder, or in the folder of a run.toml; ConfigError if there is none."""
    folder = RunFolder((root if root.is_dir() else root.parent).absolute())
    if not folder.config.is_file():
        raise ConfigError(
            f"{folder.root} holds no run.toml.", fix="Make a run with: echo-hub init FOLDER"
        )
    return folder


def read_status(root: Path) -> dict[str, Any]:
    """Facts of the run in a folder (or of the folder of a run.toml), as plain JSON values."""
    from echo_hub.ledger.ledger import read_facts

    folder = run_folder(root)
    config = load_config(folder.config)
    facts: dict[str, Any] = {"run": config.run.id, "task": config.shown_tasks}
    facts |= read_facts(folder.ledger)
    metrics = facts["last_metrics"].items()  # those of tasks have a place of their own
    facts["last_metrics"] = {key: value for key, value in metrics if not key.startswith(PREFIX)}
    return facts


def render_status(facts: dict[str, Any]) -> None:
    """Print the facts as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in rows_of(facts, now=time.time()):
        table.add_row(name, value)
    Console().print(table)


def rows_of(facts: dict[str, Any], *, now: float) -> list[tuple[str, str]]:
    """The facts as people read them: names and values."""
    return [
        (_NAMES.get(key, key.replace("_", " ")), _value(key, value, now))
        for key, value in facts.items()
    ]


def _value(key: str, value: Any, now: float) -> str:
    if value is None or value in ({}, []):
        return "-"
    if key == "last_update_at":
        return moment(value, now)
    if key == "paused":
        return f"since {moment(value['at'], now)}, at version {value['version']}: {value['why']}"
    if key == "evaluations":
        return _evaluations_in_words(value)
    if key == "tasks":
        return "; ".join(f"{name}: {sentence_of_task(one)}" for name, one in value.items())
    if key == "dissemination":
        return sentence_of(value)
    if key == "heldout_reward":
        return ", ".join(f"v{version} {_fraction(reward)}" for version, reward in value.items())
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(number)}" for name, number in value.items())
    return str(value)


def _evaluations_in_words(evaluations: list[dict[str, Any]]) -> str:
    """The newest with its interval, and each task's, where there are several."""
    last = Evaluated.from_dict(evaluations[-1])
    words = [f"v{last.version} {last.all} of {last.all.prompts} prompts"]
    if len(last.tasks) > 1:
        words += [f"{name} {one}" for name, one in last.tasks.items()]
    return ", ".join(words)


def sentence_of_task(metrics: dict[str, float]) -> str:
    """How a task fared of late."""
    if "groups" not in metrics:
        return "not drawn of late"
    outside = metrics.get("outside", 0.0)
    return (
        f"reward {_fraction(metrics['reward_mean'])}, solved {metrics['pass_rate']:.0%}, "
        f"{metrics['length_mean']:.0f} tokens, {metrics['zero_advantage']:.0%} of "
        f"{metrics['groups']:.0f} groups flat"
        + (f", {outside:.0%} of it always or never solved" if outside else "")
    )


def moment(at: float, now: float) -> str:
    """A time and how long ago it was; both in Unix seconds."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{clock} ({_age(now - at)} ago)"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _fraction(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3g}"
