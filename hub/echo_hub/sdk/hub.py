"""`Hub`: a run in your process, in a script, a notebook or an asynchronous program."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_hub.config import RunConfig
from echo_hub.sdk.display import showing
from echo_hub.sdk.elsewhere import in_thread
from echo_hub.sdk.events import NodeEvent, Publication, Rollout
from echo_hub.sdk.feed import Feed
from echo_hub.sdk.prepare import Code, local_config, prepare
from echo_hub.sdk.tell import Heard
from echo_hub.sdk.thread import HubThread
from echo_hub.sdk.watch import Told
from echo_hub.update_facts import UpdateFacts
from echo_p2p.errors import ConfigError, LearnerError

if TYPE_CHECKING:
    import pandas

    from echo_hub.commands.export import Exported
    from echo_hub.commands.presets import Model
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.sdk.task import Reward
    from echo_hub.tasks.base import AnyTask

_FOREVER = 2**31 - 1
_open_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


class Hub:
    """A run of your own: its hub in a thread of this process, everything else as child processes.

    It opens when it is first trained and stays open, with its nodes at work, until `close` (or the
    end of a `with` block, or of the process). Opened again on the same folder, it goes on.

    Args:
        config: a `run.toml` or its folder, or a `RunConfig` and a `folder` for the run.
        task: your task: a name as in run.toml, a class, or an instance of one (docs/sdk.md says
            what of it can be carried to the processes in which it runs).
        reward: in the place of the task's own: `reward(prompt, answer) -> float`.
        advantage: your algorithm: rewards [groups, G] to advantages [groups, G], both tensors.
        loss: your algorithm: `learner.objective.Tokens` of a micro-batch to the loss of each
            token [N].
        nodes: `echo-node` processes started beside it, on this machine.
        on_update, on_publish, on_rollout, on_node: called by `run` and `train`, in their thread,
            in the order in which things happened. What they raise ends the training.

    Raises:
        ConfigError: something in it cannot be; the message says what, and what to do.
    """

    def __init__(
        self,
        config: RunConfig | str | Path,
        *,
        folder: str | Path | None = None,
        task: AnyTask | type[AnyTask] | str | None = None,
        reward: Reward | None = None,
        advantage: Callable[..., Any] | str | None = None,
        loss: Callable[..., Any] | str | None = None,
        nodes: int = 0,
        on_update: Callable[[UpdateFacts], object] | None = None,
        on_publish: Callable[[Publication], object] | None = None,
        on_rollout: Callable[[Rollout], object] | None = None,
        on_node: Callable[[NodeEvent], object] | None = None,
    ) -> None:
        code = Code(task=task, reward=reward, advantage=advantage, loss=loss)
        self.config, self._folder = prepare(config, folder, code)
        self._nodes = nodes
        self._heard = Heard(
            on_update=on_update,
            on_publish=on_publish,
            on_rollout=on_rollout,
            on_node=on_node,
            base=self.config.base.path,
        )
        self._thread: HubThread | None = None
        self._training: tuple[Feed[Told], Callable[[], None]] | None = None
        self._temporary = False

    @classmethod
    def local(
        cls,
        model: Model = "addmix3",
        *,
        nodes: int = 2,
        folder: str | Path | None = None,
        seed: int = 0,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        task: AnyTask | type[AnyTask] | str | None = None,
        reward: Reward | None = None,
        advantage: Callable[..., Any] | str | None = None,
        loss: Callable[..., Any] | str | None = None,
        on_update: Callable[[UpdateFacts], object] | None = None,
        on_publish: Callable[[Publication], object] | None = None,
        on_rollout: Callable[[Rollout], object] | None = None,
        on_node: Callable[[NodeEvent], object] | None = None,
    ) -> Hub:
        """A run on this machine alone, with nothing to set up.

        Args:
            model: a packaged small base, or one that is made in minutes, as `echo-hub init` has
                them.
            nodes: node processes, each with an engine of its own.
            folder: where the run is kept; without one it is gone when the hub is closed.
            seed: of the run.
            settings: sections of run.toml laid over the preset, as
                `{"learner": {"learning_rate": 5e-4}}`.

        The others are those of `Hub`. There are no held-out prompts asked unless you `evaluate`,
        and no dashboard unless `settings` has one.
        """
        root = Path(folder or tempfile.mkdtemp(prefix="echo-hub-")).absolute()
        try:
            config = local_config(model, root, seed=seed, settings=settings or {})
            made = cls(
                config,
                folder=root,
                task=task,
                reward=reward,
                advantage=advantage,
                loss=loss,
                nodes=nodes,
                on_update=on_update,
                on_publish=on_publish,
                on_rollout=on_rollout,
                on_node=on_node,
            )
        except BaseException:
            if folder is None:
                shutil.rmtree(root, ignore_errors=True)
            raise
        made._temporary = folder is None
        return made

    # --- training -----------------------------------------------------------------------------

    def run(self, updates: int | None = None, *, show: bool | None = None) -> list[UpdateFacts]:
        """Train, and wait for it. Ctrl-C finishes the update in hand and is then raised.

        Args:
            updates: how many more; None: until the run is complete (`run.updates` of its
                configuration), or for ever.
            show: a live screen on a terminal, or in a notebook. None: if there is one.

        Returns: the updates made, in order.

        Raises:
            RunFailedError: the run paused, or a node ended; LearnerError and others as they come.
        """
        self._start()
        feed, stop = self._begin(updates)
        made: list[UpdateFacts] = []
        try:
            with showing(self._screen, show) as refresh:
                while True:
                    if not feed.wait(0.5):
                        refresh()
                        continue
                    told = next(feed, None)
                    if told is None:
                        break
                    update = self._heard.hear(told)
                    if update is not None:
                        made.append(update)
                        refresh()
        except BaseException:
            stop()
            self._settle()
            raise
        return made

    async def train(
        self, updates: int | None = None, *, show: bool = False
    ) -> AsyncIterator[UpdateFacts]:
        """Train, and give each update as it is made; for asyncio (a notebook) and trio.

        Leaving the loop early ends the training after the update in hand. The arguments are those
        of `run`.
        """
        await in_thread(self._start)
        feed, stop = self._begin(updates)
        try:
            with showing(self._screen, show) as refresh:
                async for told in feed:
                    update = self._heard.hear(told)
                    if update is not None:
                        refresh()
                        yield update
        finally:
            stop()

    def evaluate(self, prompts: int = 128) -> Evaluated:
        """Reward of the newest published version on the first held-out prompts, by the nodes.

        Returns: of all prompts (`.all.reward`, with the 95 % interval `.all.low` to `.all.high`)
        and of each task.
        """
        self._start()
        self._settle()
        assert self._thread is not None
        found = self._thread.evaluate(prompts)
        if found is None:
            raise LearnerError("fewer than half of the held-out prompts could be scored.")
        return found

    def _start(self) -> None:
        """Open the hub, if it is not open."""
        if self._thread is not None and self._thread.running:
            return
        self._thread = HubThread(self.config, self._folder, nodes=self._nodes)
        self._thread.start()
        _open_hubs.add(self)

    def _begin(self, updates: int | None) -> tuple[Feed[Told], Callable[[], None]]:
        self._settle()
        assert self._thread is not None
        until = _FOREVER if updates is None else self.version + updates
        self._training = self._thread.train(until, self._heard.wanted)
        return self._training

    def _settle(self) -> None:
        """End a training that somebody left early, and wait for that."""
        if self._training is None:
            return
        feed, stop = self._training
        self._training = None
        stop()
        with suppress(Exception):  # whoever left has been told, or did not want to know
            for _ in feed:
                pass

    def _screen(self) -> Any:
        import time

        from echo_hub.commands.live import draw

        assert self._thread is not None
        return self._thread.call(lambda hub: draw(hub, time.monotonic()))

    # --- what there is ------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The run's folder, for `echo-hub status` and the other commands."""
        return self._folder.root

    @property
    def bootstrap(self) -> Path:
        """The file that volunteers join with: `echo-node join --bootstrap FILE`."""
        return self._folder.bootstrap

    @property
    def url(self) -> str | None:
        """Where the dashboard is, while the hub is open and if it has one."""
        return None if self._thread is None else self._thread.url

    @property
    def version(self) -> int:
        """The policy version that the learner has reached; 0 before the first update."""
        if self._thread is not None and self._thread.running:
            return self._thread.call(lambda hub: hub.loop.version)
        if not self._folder.ledger.is_file():
            return 0
        return int(self.status()["version"] or 0)

    def status(self) -> dict[str, Any]:
        """The facts of `echo-hub status --json`."""
        from echo_hub.commands.status import read_status

        return read_status(self.folder)

    def nodes(self) -> list[dict[str, Any]]:
        """The facts of `echo-hub nodes --json`, the busiest node first."""
        from echo_hub.commands.nodes import list_nodes

        return list_nodes(self.folder)

    def metrics(self) -> list[dict[str, float]]:
        """Every metric of every update, a row an update: `version`, `at` (Unix seconds), and those
        that docs/learner.md names."""
        from echo_hub.ledger.metrics import read_metrics

        return read_metrics(self._folder.ledger)

    def frame(self) -> pandas.DataFrame:
        """`metrics` as a data frame, indexed by version."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "a data frame needs pandas, which is not installed.",
                fix="pip install 'echo-p2p[pandas]', or use hub.metrics().",
            ) from error
        return pandas.DataFrame(self.metrics()).set_index("version")

    def adapter(self, version: int | None = None) -> Path:
        """The PEFT folder of a version (None: the newest), as long as the run keeps it."""
        wanted = self.version if version is None else version
        path = self._folder.adapter(wanted)
        if not path.is_dir():
            kept = ", ".join(map(str, sorted(self._folder.kept()))) or "none yet"
            raise ConfigError(f"version {wanted} is not kept.", fix=f"There are: {kept}.")
        return path

    def export(
        self, out: str | Path, *, version: int | None = None, merge: bool = False
    ) -> Exported:
        """Write a version as a PEFT adapter, or merged with its base, with a model card."""
        from echo_hub.commands.export import export_run

        return export_run(self.folder, Path(out), version=version, merge=merge)

    def resume(self) -> None:
        """Let a paused run go on, at the next `run` or `train`."""
        from echo_hub.commands.resume import resume_run

        if self._thread is not None:
            self._settle()
        resume_run(self.folder)

    # --- its end ------------------------------------------------------------------------------

    def close(self) -> None:
        """End the hub and all that it started. Its folder stays, if you named one."""
        if self._thread is not None:
            self._settle()
            self._thread.close()
            _open_hubs.discard(self)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Hub:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)


@atexit.register
def _close_all() -> None:
    for hub in list(_open_hubs):
        hub.close()
