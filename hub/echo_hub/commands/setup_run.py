"""`echo-hub init`: makes a run's folder, whole or not at all. Never overwrites a key or a run."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from echo_hub.commands.presets import MODELS, SMALL_BASES, preset, spoken
from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig
from echo_hub.folders import whole_folder
from echo_hub.paths import RunFolder
from echo_p2p.bootstrap import (
    DEMO_DIRECTORY_SEED,
    DEMO_IDENTITY_SEED,
    DEMO_RUN_ID,
    MIN_ADDRESSES,
    render_bootstrap,
)
from echo_p2p.directory.identity import ensure_directory_identity
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity

LOOPBACK = ("127.0.0.1", "::1")
_OWN_MACHINE = ("127.0.0.1", "localhost")
_OWN_MACHINE_NOTE = """\

The loopback addresses are for nodes on the hub's own machine, so that they too can join with this
file; elsewhere they lead nowhere, and nodes go on to the others."""
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def init_run(
    folder: Path,
    *,
    run_id: str | None,
    model: str,
    hosts: Sequence[str],
    port: int,
    local_demo: bool,
    task: str | None = None,
    expires: datetime | None = None,
) -> RunFolder:
    """Make identity, run.toml and bootstrap_peers.toml in a new or empty folder.

    Args:
        hosts: names or IPs at which volunteers reach the hub; none means this machine only.
        port: the hub's TCP port; the directory takes the next one.
        local_demo: the packaged local network: its published key and run id, loopback only.
        task: a built-in task for a language model; the small bases have their own.
        expires: when volunteers need a newer bootstrap file.
    """
    if expires is not None and expires <= datetime.now(UTC):
        raise ConfigError(
            f"--expires {expires:%Y-%m-%d} is over: nobody could join.",
            fix="Name a day to come.",
        )
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}.", fix=f"Choose from: {', '.join(MODELS)}.")
    if local_demo and hosts:
        raise ConfigError("--local-demo is for this machine only; leave --address out.")
    made = RunFolder(folder.resolve())
    if local_demo and run_id is not None:
        raise ConfigError(f"the local demo's run is {DEMO_RUN_ID!r}; leave --run out.")
    network: dict[str, Any] = {
        "listen": _listen(hosts, port),
        "announce": [f"{_host(host)}/tcp/{port}" for host in hosts],
        "directory_listen": _listen(hosts, port + 1),
    }
    overrides: dict[str, dict[str, Any]] = {"network": network}
    if model == "smollm2":
        overrides["base"] = {"path": str(made.smollm2)}
    if model in SMALL_BASES:
        overrides["base"] = {"path": str(made.small_base)}
    if task is not None:
        if model != "smollm2":
            raise ConfigError(
                f"the base {model} knows its own task alone, so not {task!r}.",
                fix="Leave --task out, or use --model smollm2.",
            )
        overrides |= spoken(task)
    config = preset(
        model, run_id=DEMO_RUN_ID if local_demo else run_id or "my-run", overrides=overrides
    )
    try:
        _check_place(made.root)
        with whole_folder(made.root, replace=False) as draft:
            _fill(
                RunFolder(draft), config, model, hosts, port, local_demo=local_demo, expires=expires
            )
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {made.root}: {(error.strerror or str(error)).lower()}.",
            fix="Name a folder that does not exist yet, where you may write.",
        ) from error
    return made


def _check_place(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is not a folder.", fix="Name one that does not exist yet.")
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root} is not empty.", fix="Name a folder that does not exist yet.")
    if root == Path.cwd():  # it will be another folder of that name, and a shell stays in the old
        raise ConfigError("the folder you are in cannot become a run.", fix="Name one inside it.")


def _fill(
    draft: RunFolder,
    config: RunConfig,
    model: str,
    hosts: Sequence[str],
    port: int,
    *,
    local_demo: bool,
    expires: datetime | None,
) -> None:
    identity = Identity.from_seed(DEMO_IDENTITY_SEED) if local_demo else Identity.create()
    identity.save(draft.identity)
    if local_demo:  # the packaged bootstrap file names this directory peer
        Identity.from_seed(DEMO_DIRECTORY_SEED).save(draft.directory_key)
    draft.config.write_text(render_config(config), encoding="utf-8")
    write_bootstrap(draft, config, hub_id=identity.peer_id, hosts=hosts, port=port, expires=expires)
    if model == "smollm2":
        from echo_hub.models.smollm2 import make_smollm2

        make_smollm2(draft.smollm2)
    if model in SMALL_BASES:
        from echo_hub.models.make_base import make_base

        make_base(model, draft.small_base)


def write_bootstrap(
    folder: RunFolder,
    config: RunConfig,
    *,
    hub_id: str,
    hosts: Sequence[str],
    port: int,
    expires: datetime | None = None,
) -> None:
    """Write the file that volunteers join with."""
    directory_id = ensure_directory_identity(folder.directory_key)
    reachable, note = _reachable(hosts)
    addresses = [f"{_host(host)}/tcp/{port}/p2p/{hub_id}" for host in reachable]
    addresses += [f"{_host(host)}/tcp/{port + 1}/p2p/{directory_id}" for host in reachable]
    folder.bootstrap.write_text(
        render_bootstrap(
            network=f"network of {config.run.id}",
            run_id=config.run.id,
            hub_key=hub_id,
            addresses=addresses,
            note=note,
            expires=expires,
        ),
        encoding="utf-8",
    )


def _reachable(hosts: Sequence[str]) -> tuple[list[str], str]:
    """The hosts for a bootstrap file, enough of them, and what it should say of them."""
    found = list(dict.fromkeys(hosts or LOOPBACK))
    note = ""
    for own in _OWN_MACHINE:
        if 2 * len(found) < MIN_ADDRESSES and own not in found:  # each: the hub and its directory
            found.append(own)
            note = _OWN_MACHINE_NOTE
    return found, note


def _listen(hosts: Sequence[str], port: int) -> list[str]:
    if hosts:
        every = ["/ip4/0.0.0.0"]
        if any(_host(host).startswith("/ip6/") for host in hosts):
            every.append("/ip6/::")
        return [f"{interface}/tcp/{port}" for interface in every]
    return [f"{_host(host)}/tcp/{port}" for host in LOOPBACK]


def _host(host: str) -> str:
    """The beginning of a multiaddr for a host name or an IP; ConfigError for anything else."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NAME.fullmatch(host) and not host.replace(".", "").isdigit():
            return f"/dns4/{host}"
    else:
        if "%" not in host and not address.is_unspecified and not address.is_multicast:
            return f"/ip{address.version}/{host}"
    raise ConfigError(
        f"{host!r} is no host name or IP at which a hub could be reached.",
        fix="Give --address a name or an IP alone, as hub.example.org; the port goes to --port.",
    )
