"""A run's folder and configuration, from what a `Hub` is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_hub.commands.demo import base_of, make_base_of
from echo_hub.commands.presets import MODELS, preset
from echo_hub.commands.setup_run import write_bootstrap
from echo_hub.commands.status import run_folder
from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig, load_config
from echo_hub.local_nodes import free_ports, on_loopback
from echo_hub.paths import RunFolder
from echo_hub.sdk.carry import carry
from echo_hub.sdk.task import task_section
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity
from echo_p2p.net.addresses import parse_listen
from echo_p2p.toml import validate

if TYPE_CHECKING:
    from echo_hub.commands.presets import Model
    from echo_hub.sdk.task import Reward
    from echo_hub.tasks.base import AnyTask


@dataclass(frozen=True)
class Code:
    """The operator's own code, as `Hub` is given it."""

    task: AnyTask | type[AnyTask] | str | None = None
    reward: Reward | None = None
    advantage: Callable[..., Any] | str | None = None
    loss: Callable[..., Any] | str | None = None


def prepare(
    config: RunConfig | str | Path, folder: str | Path | None, code: Code
) -> tuple[RunConfig, RunFolder]:
    """The configuration in force, and the run's folder with its keys."""
    if not isinstance(config, RunConfig):
        if folder is not None:
            raise ConfigError("a run.toml says where its run is; leave folder out.")
        run = run_folder(Path(config).expanduser())
        return _with_code(load_config(run.config), code, run.root), run
    if folder is None:
        raise ConfigError(
            "a RunConfig says not where its run is kept.",
            fix="Give a folder: Hub(config, folder='my-run').",
        )
    run = RunFolder(Path(folder).expanduser().absolute())
    run.root.mkdir(parents=True, exist_ok=True)
    config = _with_code(config, code, run.root)
    if not run.identity.exists():
        Identity.create().save(run.identity)
    run.config.write_text(render_config(config), encoding="utf-8")
    hub_id = Identity.load(run.identity).peer_id
    hosts = [address.split("/")[2] for address in config.network.announce]
    port = parse_listen(config.network.listen[0]).port
    write_bootstrap(run, config, hub_id=hub_id, hosts=hosts, port=port)
    return config, run


def _with_code(config: RunConfig, code: Code, folder: Path) -> RunConfig:
    values = config.model_dump(mode="json")
    if code.task is not None or code.reward is not None:
        tasks = values.pop("tasks", None)
        if code.task is None and tasks:
            raise ConfigError(
                "reward= is for a run of one task, and this one has several.",
                fix="Give task= as well, or write the reward into the tasks themselves.",
            )
        values["task"] = task_section(code.task, code.reward, values.get("task", {}), folder)
    elif not config.tasks:
        values.pop("tasks", None)
    for name in ("advantage", "loss"):
        given = getattr(code, name)
        if given is not None:
            place = given if isinstance(given, str) else carry(given, folder)
            values["learner"][f"{name}_function"] = place
    return validate(values, RunConfig, source="Hub()")


def local_config(
    model: Model, root: Path, *, seed: int, settings: Mapping[str, Mapping[str, Any]]
) -> RunConfig:
    """The configuration of a run on this machine alone; a base that is not packaged is made."""
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}.", fix=f"Choose from: {', '.join(MODELS)}.")
    run = RunFolder(root)
    overrides: dict[str, dict[str, Any]] = {
        "run": {"id": "local", "seed": seed},
        "evaluation": {"prompts": 0},
        "dashboard": {"enabled": False},
        "network": {"directory": False, **on_loopback(free_ports())},
    }
    if model != "addmix3":
        base = base_of(model, run)
        overrides["base"] = {"path": str(base)}
        if not base.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            make_base_of(model, run)
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"settings[{section!r}] is no table.",
                fix='Write it like settings={"learner": {"learning_rate": 5e-4}}.',
            )
        overrides[section] = {**overrides.get(section, {}), **values}
    return preset(model, run_id="local", overrides=overrides)
