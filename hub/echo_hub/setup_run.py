"""`echo-hub init`: makes a run's folder. Never overwrites a key or a run."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo_hub.config import RunConfig
from echo_hub.paths import RunFolder
from echo_hub.presets import MODELS, preset
from echo_hub.template import render_config
from echo_p2p.bootstrap import (
    DEMO_DIRECTORY_SEED,
    DEMO_IDENTITY_SEED,
    DEMO_RUN_ID,
    render_bootstrap,
)
from echo_p2p.directory.identity import ensure_directory_identity
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity

LOOPBACK = ("127.0.0.1", "::1")


def init_run(
    folder: Path, *, run_id: str, model: str, hosts: Sequence[str], port: int, local_demo: bool
) -> RunFolder:
    """Make identity, run.toml and bootstrap_peers.toml in a new or empty folder.

    Args:
        hosts: names or IPs at which volunteers reach the hub; none means this machine only.
        port: the hub's TCP port; the directory takes the next one.
        local_demo: the packaged local network: its published key and run id, loopback only.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty.", fix="Name a folder that does not exist yet.")
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}.", fix=f"Choose from: {', '.join(MODELS)}.")
    if local_demo and hosts:
        raise ConfigError("--local-demo is for this machine only; leave --address out.")
    root = folder.absolute()
    root.mkdir(parents=True, exist_ok=True)
    made = RunFolder(root)
    identity = Identity.from_seed(DEMO_IDENTITY_SEED) if local_demo else Identity.create()
    identity.save(made.identity)
    if local_demo:  # the packaged bootstrap file names this directory peer
        Identity.from_seed(DEMO_DIRECTORY_SEED).save(made.directory_key)
    run = DEMO_RUN_ID if local_demo else run_id
    network: dict[str, Any] = {
        "listen": _listen(hosts, port),
        "announce": [f"{_host(host)}/tcp/{port}" for host in hosts],
        "directory_listen": _listen(hosts, port + 1),
    }
    overrides: dict[str, dict[str, Any]] = {"network": network}
    if model == "smollm2":
        overrides["base"] = {"path": str(_smollm2(root))}
    config = preset(model, run_id=run, overrides=overrides)
    made.config.write_text(render_config(config), encoding="utf-8")
    write_bootstrap(made, config, hub_id=identity.peer_id, hosts=hosts, port=port)
    return made


def write_bootstrap(
    folder: RunFolder, config: RunConfig, *, hub_id: str, hosts: Sequence[str], port: int
) -> None:
    """Write the file that volunteers join with."""
    directory_id = ensure_directory_identity(folder.directory_key)
    reachable = [_host(host) for host in hosts or LOOPBACK]
    addresses = [f"{host}/tcp/{port}/p2p/{hub_id}" for host in reachable]
    addresses += [f"{host}/tcp/{port + 1}/p2p/{directory_id}" for host in reachable]
    folder.bootstrap.write_text(
        render_bootstrap(
            network=f"network of {config.run.id}",
            run_id=config.run.id,
            hub_key=hub_id,
            addresses=addresses,
        ),
        encoding="utf-8",
    )


def _listen(hosts: Sequence[str], port: int) -> list[str]:
    if hosts:
        return [f"/ip4/0.0.0.0/tcp/{port}"]
    return [f"{_host(host)}/tcp/{port}" for host in LOOPBACK]


def _host(host: str) -> str:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return f"/dns4/{host}"
    return f"/ip{version}/{host}"


def _smollm2(root: Path) -> Path:
    from echo_hub.models.smollm2 import make_smollm2

    base = root / "smollm2"
    make_smollm2(base)
    return base
