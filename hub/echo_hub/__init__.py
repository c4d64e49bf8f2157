"""The hub of echo-p2p: the command `echo-hub`, and the Python SDK.

Everything to use from Python is a name of this package; docs/sdk.md shows it. Modules below it may
change. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_hub.commands.export import Exported
    from echo_hub.config import RunConfig, load_config
    from echo_hub.learner.objective import Tokens
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.sdk.async_client import AsyncHubClient
    from echo_hub.sdk.client import HubClient
    from echo_hub.sdk.events import NodeEvent, Publication, Rollout
    from echo_hub.sdk.hub import Hub
    from echo_hub.tasks import MultiTurnTask, Prompt, Split, Task, Transcript, Turns, draw
    from echo_hub.update_facts import UpdateFacts

_PLACES = {
    "AsyncHubClient": "sdk.async_client",
    "Evaluated": "rollouts.evaluation",
    "Exported": "commands.export",
    "Hub": "sdk.hub",
    "HubClient": "sdk.client",
    "MultiTurnTask": "tasks",
    "NodeEvent": "sdk.events",
    "Prompt": "tasks",
    "Publication": "sdk.events",
    "Rollout": "sdk.events",
    "RunConfig": "config",
    "Split": "tasks",
    "Task": "tasks",
    "Tokens": "learner.objective",
    "Transcript": "tasks",
    "Turns": "tasks",
    "UpdateFacts": "update_facts",
    "draw": "tasks",
    "load_config": "config",
}

__all__ = [
    "AsyncHubClient",
    "Evaluated",
    "Exported",
    "Hub",
    "HubClient",
    "MultiTurnTask",
    "NodeEvent",
    "Prompt",
    "Publication",
    "Rollout",
    "RunConfig",
    "Split",
    "Task",
    "Tokens",
    "Transcript",
    "Turns",
    "UpdateFacts",
    "draw",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
