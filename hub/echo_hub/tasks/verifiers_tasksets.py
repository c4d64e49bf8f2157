"""`verifiers:<package>`: an installed taskset of the verifiers package (0.4), answered in one turn.

A taskset yields tasks with a prompt, and rewards that look at the trace of an episode. Here the
trace is one question and one answer. So tasks are refused at the start, with the reason, that need
what only an agent has: tools, a container, a user who speaks first, messages other than a system
prompt and a user's. Everything happens in the hub's scorer processes; verifiers is not needed by
nodes, nor by hubs that do not name such a task.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.options import read_options
from echo_hub.tasks.splits import held_out, rng_of
from echo_p2p.errors import ConfigError, TaskError
from echo_p2p.toml import Strict


class VerifiersOptions(Strict):
    config: dict[str, Any] = Field(default_factory=dict)
    """The taskset's own configuration."""
    rows: Annotated[int, Field(ge=2, le=1_000_000)] = 10_000
    """Most tasks that are read from it."""


class Verifiers:
    """The tasks of one taskset, a quarter of them held out by what their prompts say."""

    def __init__(self, package: str, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options(f"verifiers:{package}", options, VerifiersOptions)
        self._vf, loaders = _package()
        self._package = package
        self._seed = seed
        try:
            kind = loaders.taskset_config_type(package)
            taskset = loaders.load_taskset(kind(id=package, **self._options.config))
            tasks = list(itertools.islice(taskset, self._options.rows))
        except Exception as error:  # other people's code, and pydantic's errors
            raise ConfigError(
                f"cannot load the taskset {package!r}: {type(error).__name__}: {error}.",
                fix="Is its package installed? Its configuration goes to task.options.config.",
            ) from error
        self._refuse(type(taskset).toolsets(taskset.config), tasks)
        texts = [(_text(task.data), task) for task in tasks]
        self._tasks: dict[Split, list[tuple[str, Any]]] = {
            "train": [one for one in texts if not held_out(one[0])],
            "heldout": [one for one in texts if held_out(one[0])],
        }
        if not all(self._tasks.values()):
            raise ConfigError(f"the taskset {package!r} has {len(texts)} tasks: too few to split.")

    def prompt(self, split: Split, index: int) -> Prompt:
        tasks = self._tasks[split]
        epoch, place = divmod(index, len(tasks))
        order = list(range(len(tasks)))
        rng_of(self._seed, "order", split, epoch).shuffle(order)
        return Prompt(tasks[order[place]][0], {"split": split, "number": order[place]})

    def reward(self, prompt: Prompt, answer: str) -> float:
        """The weighted sum of the task's rewards. TaskError when one of them could not be had."""
        _, task = self._tasks[prompt.data["split"]][prompt.data["number"]]
        trace = self._trace(task, answer)
        try:
            asyncio.run(task.score(trace, None))
        except Exception as error:
            raise TaskError(
                f"{self._package} cannot score: {type(error).__name__}: {error}."
            ) from (error)
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing or not trace.rewards:
            raise TaskError(f"{self._package} gave no reward {', '.join(missing)}.")
        return float(trace.reward)

    def _trace(self, task: Any, answer: str) -> Any:
        vf = self._vf
        from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

        nodes = []
        if task.data.system_prompt:
            nodes.append(vf.MessageNode(message=SystemMessage(content=task.data.system_prompt)))
        messages = [UserMessage(content=task.data.prompt_text), AssistantMessage(content=answer)]
        for message in messages:
            parent = len(nodes) - 1 if nodes else None
            sampled = isinstance(message, AssistantMessage)
            nodes.append(vf.MessageNode(message=message, parent=parent, sampled=sampled))
        return vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=nodes,
            is_completed=True,
            ok=True,
            stop_condition="answered",
        )

    def _refuse(self, toolsets: list[Any], tasks: list[Any]) -> None:
        """ConfigError for tasks that one answer cannot solve or that cannot be scored here."""
        for task in tasks:
            data, needs = task.data, ""
            roles = [getattr(message, "role", "?") for message in _messages(data.prompt)]
            if toolsets or type(task).toolsets(task.config):
                needs = "tools"
            elif type(task).NEEDS_CONTAINER or data.image or data.artifacts:
                needs = "a container"
            elif not data.prompt_text or any(role != "user" for role in roles):
                needs = "a dialogue that others began"
            elif any(_needs_runtime(hook) for hook in task.hooks("reward")):
                needs = "the machine that an agent worked on, to be scored"
            if needs:
                raise ConfigError(
                    f"the taskset {self._package!r} needs {needs}; only tasks that are answered "
                    "in one turn, and scored from the answer, can be trained on here."
                )


def _messages(prompt: Any) -> list[Any]:
    return [] if prompt is None or isinstance(prompt, str) else list(prompt)


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _text(data: Any) -> str:
    system = f"{data.system_prompt}\n\n" if data.system_prompt else ""
    return system + str(data.prompt_text)


def _package() -> tuple[Any, Any]:
    try:
        import verifiers.v1
        from verifiers.v1.utils import loaders
    except ImportError as error:
        raise ConfigError(
            "the package verifiers is not installed, or is older than 0.4.",
            fix="Run: pip install 'verifiers>=0.4,<0.5'",
        ) from error
    return verifiers.v1, loaders
