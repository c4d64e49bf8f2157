"""`echo-hub check`: is a run.toml right, and what will the run do? Changes nothing.

What can be tried is tried: the base's files and tokenizer are read, a scorer makes prompts of every
task, own functions and trackers are looked for, ports are bound for a moment if no hub serves the
run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from echo_hub.commands.status import run_folder
from echo_hub.config import RunConfig, load_config
from echo_hub.ledger.ledger import is_served, read_facts
from echo_hub.paths import RunFolder
from echo_hub.run_facts import resolve_base
from echo_p2p.errors import ConfigError, EchoError, NetError


@dataclass(frozen=True)
class Problem:
    """What stands in the run's way, and what to do about it."""

    message: str
    fix: str


@dataclass
class Checked:
    """`will` says in words what the run will do; without `problems` it can be served."""

    run: str
    will: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": not self.problems, **asdict(self)}


def check_run(path: Path) -> Checked:
    """Check the run.toml in a folder, or this one. ConfigError if the file itself is wrong."""
    folder = run_folder(path)
    config = load_config(folder.config)
    found = Checked(config.run.id, list(words_of(config)))
    tries: list[Callable[[RunConfig, RunFolder], None]] = [
        _key,
        _base,
        _tasks,
        _own_code,
        _trackers,
        _ports,
    ]
    for attempt in tries:
        try:
            attempt(config, folder)
        except EchoError as error:
            found.problems.append(Problem(error.message, error.fix))
    if folder.ledger.is_file():
        try:
            found.will.append(_where_it_stands(config, folder))
        except EchoError as error:
            found.problems.append(Problem(error.message, error.fix))
    return found


def words_of(config: RunConfig) -> Iterator[str]:
    """What a configuration will do, a sentence each. Pure."""
    run, learner, sampling = config.run, config.learner, config.sampling
    rollouts = learner.groups_per_update * sampling.group_size
    until = f"until {run.updates} updates are made" if run.updates else "until it is stopped"
    what = f"a LoRA adapter of rank {learner.rank}" if learner.adapter == "lora" else "all weights"
    yield f"Run {run.id} trains {what} of {config.base.path} in {config.base.dtype}, {until}."
    yield (
        f"It asks {config.shown_tasks}. An update takes {learner.groups_per_update} prompts with "
        f"{sampling.group_size} answers each: {rollouts} rollouts of at most "
        f"{sampling.max_new_tokens} tokens, at temperature {sampling.temperature:g}."
    )
    if config.staleness:
        yield (
            f"No rollout more than {config.staleness} versions old is trained on; "
            f"{_each(config.kappa)} version is sent to the nodes."
        )
    else:
        yield "Learner and nodes take turns: only rollouts of the newest version are trained on."
    advantage = learner.advantage_function or learner.advantage
    yield (
        f"The learner is on {learner.device}"
        + (f" with {learner.devices} devices" if learner.devices > 1 else "")
        + f", with loss {learner.loss_function or learner.loss}, advantage {advantage}, a step "
        f"size of {learner.learning_rate:g}."
    )
    yield (
        f"All groups of a newcomer are audited, and never less than {config.audit.floor:.0%}; "
        + ("fraud bans a node." if config.audit.ban else "nobody is banned.")
    )
    if config.evaluation.prompts:
        every = config.evaluation.every
        when = f"every {every} updates, " if every else ""
        yield (
            f"{config.evaluation.prompts} held-out prompts are asked {when}at the beginning and "
            "the end."
        )
    yield from _words_of_network(config)


def _words_of_network(config: RunConfig) -> Iterator[str]:
    network, dashboard = config.network, config.dashboard
    announced = ", ".join(network.announce) or "this machine alone can reach it"
    limited = network.limits.upload is not None
    sends = f"it sends {network.max_upload} at most" if limited else "it sends as fast as it can"
    yield (f"Nodes reach it at {', '.join(network.listen)} ({announced}); {sends}.")
    if dashboard.enabled:
        scheme = "https" if dashboard.has_tls else "http"
        login = "with a log-in" if dashboard.token_file else "without a log-in"
        yield f"Its dashboard is at {scheme}://{dashboard.host}:{dashboard.port}, {login}."
    if config.trackers.use:
        yield f"Every metric goes to {', '.join(config.trackers.use)}."


def _each(number: int) -> str:
    return {1: "every", 2: "every second", 3: "every third"}.get(number, f"every {number}th")


def _key(config: RunConfig, folder: RunFolder) -> None:
    from echo_p2p.identity import Identity

    Identity.load(folder.identity)


def _base(config: RunConfig, folder: RunFolder) -> None:
    from echo_hub.tokens import Tokenizer

    base = resolve_base(config.base.path)
    if not any(base.glob("*.safetensors")):
        raise ConfigError(
            f"base.path = {config.base.path!r} holds no safetensors weights.",
            fix="Name a snapshot that has them; other formats can run code.",
        )
    Tokenizer.load(base)


def _tasks(config: RunConfig, folder: RunFolder) -> None:
    trio.run(_try_tasks, config)


async def _try_tasks(config: RunConfig) -> None:
    from echo_hub.scoring.pool import open_scorers
    from echo_hub.service import try_tasks

    one = config.scoring.model_copy(update={"processes": 1})
    config = config.model_copy(update={"scoring": one})
    async with open_scorers(config, resolve_base(config.base.path)) as scorers:
        await try_tasks(config, scorers)


def _own_code(config: RunConfig, folder: RunFolder) -> None:
    from echo_hub.own_code import load_place

    for name in ("advantage_function", "loss_function"):
        place = getattr(config.learner, name)
        if place:
            load_place(place, named_by=f"learner.{name}")


def _trackers(config: RunConfig, folder: RunFolder) -> None:
    from echo_hub.trackers.kinds import check_installed

    for name in config.trackers.use:
        check_installed(name)


def _ports(config: RunConfig, folder: RunFolder) -> None:
    from echo_p2p.net.addresses import parse_listen

    if is_served(folder.ledger):
        return
    places = [(parse_listen(address), address) for address in config.network.listen]
    if config.network.directory:
        places += [(parse_listen(one), one) for one in config.network.directory_listen]
    for place, address in places:
        family = socket.AF_INET6 if place.kind == "ip6" else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((place.host, place.port))
            except OSError as error:
                raise NetError(
                    f"{address} cannot be listened on: {(error.strerror or str(error)).lower()}.",
                    fix="Does something else use the port? Choose others in [network].",
                ) from error


def _where_it_stands(config: RunConfig, folder: RunFolder) -> str:
    facts: dict[str, Any] = read_facts(folder.ledger)
    version = facts["version"]
    words = "It has no version yet." if version is None else f"It goes on from version {version}."
    if facts["paused"]:
        words += f" It is paused: {facts['paused']['why']}"
    if version is not None and 0 < config.run.updates <= version:
        words += " It is complete: raise run.updates to go on."
    return words


def render_check(found: Checked) -> None:
    """Print it."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    for sentence in found.will:
        console.print(f"- {sentence}", markup=False, highlight=False)
    for problem in found.problems:
        console.print(f"problem: {problem.message}", style="bold red", markup=False)
        if problem.fix:
            console.print(problem.fix, markup=False, highlight=False)
    if not found.problems:
        console.print("Nothing stands in its way.")
