"""Trackers get every update once, and nothing they do is the run's trouble."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from echo_hub.commands.presets import preset
from echo_hub.config import RunConfig
from echo_hub.ledger.ledger import Ledger
from echo_hub.paths import RunFolder
from echo_hub.rollouts.evaluation import Evaluated, estimate
from echo_hub.trackers import follow, kinds
from echo_hub.trackers.follow import tracking, values_of
from echo_p2p.errors import ConfigError, EchoError


@dataclass
class Loop:
    """The learner's loop as `tracking` sees it."""

    version: int = 0
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    news: trio.Event = field(default_factory=trio.Event)

    async def changed(self) -> None:
        await self.news.wait()

    def tell(self) -> None:
        self.news.set()
        self.news = trio.Event()


class World:
    def __init__(self, root: Path, **trackers: Any) -> None:
        self.folder = RunFolder(root)
        overrides = {"trackers": trackers}
        self.config: RunConfig = preset("addmix3", run_id="run", overrides=overrides)
        self.loop = Loop()
        self.hub: Any = SimpleNamespace(config=self.config, loop=self.loop)

    def run(self, body: Callable[[Ledger], Awaitable[None]]) -> None:
        async def main() -> None:
            async with Ledger.open(self.folder.ledger, "run") as ledger:
                await ledger.begin()
                async with tracking(self.hub, self.folder):
                    await body(ledger)

        trio.run(main)

    async def update(self, ledger: Ledger, version: int) -> None:
        metrics = {"reward_mean": version / 10, "task.sums.pass_rate": 0.5}
        await ledger.commit_update(version, [], metrics)
        self.loop.version = version
        self.loop.tell()

    async def until_told(self, name: str, version: int) -> None:
        memory = self.folder.trackers / name / "last-version"
        with trio.fail_after(100):
            while not memory.exists() or int(memory.read_text()) < version:  # noqa: ASYNC110
                await trio.sleep(0.02)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401 - the package is whole

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):  # length, its checksum, the event, its checksum
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_names_of_metrics() -> None:
    row = {"version": 3.0, "at": 1.0, "loss": 0.25, "task.file:a.b.pass_rate": 1.0}
    assert values_of(row) == {"learner/loss": 0.25, "tasks/file:a.b/pass_rate": 1.0}


def test_tensorboard_has_every_update_once_over_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    world = World(tmp_path, use=["tensorboard"])

    async def first(ledger: Ledger) -> None:
        await world.update(ledger, 1)
        await world.until_told("tensorboard", 1)
        await world.update(ledger, 2)
        await world.until_told("tensorboard", 2)

    async def second(ledger: Ledger) -> None:
        await world.update(ledger, 4)
        world.loop.evaluated[4] = Evaluated(4, estimate([1.0, 0.0]), {})
        await world.update(ledger, 5)
        await world.until_told("tensorboard", 5)

    world.run(first)

    async def while_nobody_tracks() -> None:
        async with Ledger.open(world.folder.ledger, "run") as ledger:
            await ledger.commit_update(3, [], {"reward_mean": 0.3})

    trio.run(while_nobody_tracks)
    world.run(second)
    found = scalars(world.folder.trackers / "tensorboard")
    rewards = found["learner/reward_mean"]
    assert [step for step, _ in rewards] == [1, 2, 3, 4, 5]
    assert [value for _, value in rewards] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [step for step, _ in found["tasks/sums/pass_rate"]] == [1, 2, 4, 5]
    assert found["heldout/reward"][0][1] == 0.5
    assert found["heldout/version"][0][1] == 4.0


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_others_where_they_are_installed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    world = World(tmp_path, use=[name], offline=True)

    async def body(ledger: Ledger) -> None:
        await world.update(ledger, 1)
        await world.until_told(name, 1)

    world.run(body)
    kept = tmp_path / "trackio" if name == "trackio" else world.folder.trackers / "wandb" / "wandb"
    assert any(file.stat().st_size > 100 for file in kept.rglob("*") if file.is_file())


BROKEN = """
import os, sys, time
class SummaryWriter:
    def __init__(self, **_):
        print("noise on stdout")
    def add_scalar(self, *_):
        how = os.environ["HOW_TO_BREAK"]
        if how == "raise":
            raise RuntimeError("the server is down")
        if how == "exit":
            os._exit(3)
        time.sleep(1000)
    def flush(self): pass
    def close(self): pass
"""


@pytest.mark.parametrize("how", ["raise", "exit", "hang"])
def test_a_tracker_that_fails_is_given_up_and_the_run_goes_on(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tensorboardX.py").write_text(BROKEN)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "broken"), path]))
    )
    monkeypatch.setenv("HOW_TO_BREAK", how)
    monkeypatch.setattr(follow, "_PAUSES_S", (0.01,))
    monkeypatch.setattr(follow, "TRIES", 2)
    monkeypatch.setattr(follow, "check_installed", lambda _: None)
    if how == "hang":
        monkeypatch.setattr(follow, "DEADLINE_S", 3.0)
    world = World(tmp_path, use=["tensorboard"])

    async def body(ledger: Ledger) -> None:
        await world.update(ledger, 1)
        with trio.fail_after(100):
            while "is given up after 2 failures" not in caplog.text:  # noqa: ASYNC110
                await trio.sleep(0.02)
        await world.update(ledger, 2)  # nobody is held up

    world.run(body)
    assert "and the run goes on" in caplog.text


def test_a_package_that_is_not_installed_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "PACKAGES", {"wandb": "no_such_package"})
    world = World(tmp_path, use=["wandb"])

    async def body(_: Ledger) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="is not installed") as error:
        world.run(body)
    assert error.value.fix.startswith("pip install 'echo-p2p[wandb]'")


def test_settings_are_checked() -> None:
    for wrong in (["wandb", "wandb"], ["mlflow"]):
        with pytest.raises(EchoError):
            preset("addmix3", run_id="run", overrides={"trackers": {"use": wrong}})
