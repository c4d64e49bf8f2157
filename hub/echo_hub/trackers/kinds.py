"""The trackers themselves. Each import of a package is made in the tracker's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from echo_p2p.errors import ConfigError

PACKAGES: Mapping[str, str] = {
    "wandb": "wandb",
    "trackio": "trackio",
    "tensorboard": "tensorboardX",
}
"""The module that each needs, by the tracker's name."""


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run: its id, its settings, and a folder for files of its own."""

    run: str
    project: str
    offline: bool
    folder: Path
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """Takes metrics. `step` is a policy version; steps only rise."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of one version."""
        ...

    def close(self) -> None:
        """Everything is written."""
        ...


def check_installed(name: str) -> None:
    """ConfigError if a tracker's package is not there."""
    if find_spec(PACKAGES[name]) is None:
        raise ConfigError(
            f"trackers.use names {name}, and its package {PACKAGES[name]} is not installed.",
            fix=f"pip install 'echo-p2p[{name}]', or leave it out of trackers.use.",
        )


class _Wandb:
    def __init__(self, about: About) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=about.project,
            id=about.run,
            name=about.run,
            dir=str(about.folder),
            config=dict(about.settings),
            mode="offline" if about.offline else "online",
            resume="allow",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, about: About) -> None:
        import trackio

        self._trackio: Any = trackio
        trackio.init(
            project=about.project,
            name=about.run,
            config=dict(about.settings),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class _Tensorboard:
    def __init__(self, about: About) -> None:
        import tensorboardX

        self._writer: Any = tensorboardX.SummaryWriter(logdir=str(about.folder), flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


_KINDS: Mapping[str, Callable[[About], Tracker]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "tensorboard": _Tensorboard,
}


def make_tracker(name: str, about: About) -> Tracker:
    """The tracker of that name, begun."""
    return _KINDS[name](about)
