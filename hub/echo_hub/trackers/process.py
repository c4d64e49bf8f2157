"""A tracker's process: `python -m echo_hub.trackers.process`, spoken to by `follow`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from echo_hub.trackers.kinds import About, Tracker, make_tracker
from echo_p2p.pipes import ParentPipe


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class Begin(_Frame, frozen=True):
    """First message. `settings` is the run's configuration as JSON."""

    tracker: str
    run: str
    project: str
    offline: bool
    folder: str
    settings: str


class Log(_Frame, frozen=True):
    """Metrics of some versions, in order."""

    steps: list[tuple[int, dict[str, float]]]


class Done(_Frame, frozen=True):
    """It is done; or `failed` says why not."""

    failed: str = ""


Command: Any = Begin | Log


def main() -> None:
    pipe = ParentPipe(outlive_work=True)
    tracker: Tracker | None = None
    while (command := pipe.receive(Command)) is not None:
        try:
            if isinstance(command, Begin):
                tracker = make_tracker(command.tracker, _about(command))
            else:
                assert tracker is not None
                for step, values in command.steps:
                    tracker.log(step, values)
        except Exception as error:  # noqa: BLE001 - a library's; the hub is told
            pipe.send(Done(failed=f"{type(error).__name__}: {error}"[:500]))
        else:
            pipe.send(Done())
    if tracker is not None:
        tracker.close()


def _about(begin: Begin) -> About:
    return About(
        run=begin.run,
        project=begin.project,
        offline=begin.offline,
        folder=Path(begin.folder),
        settings=msgspec.json.decode(begin.settings),
    )


if __name__ == "__main__":
    main()
