"""What an operator can ask of a run. Plain values, as JSON in the ledger's `requests`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from echo_p2p.errors import ConfigError

MOST_NAME, MOST_NOTE, MOST_WHY = 60, 2000, 500


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """Something to be done once."""


# --- about a node: `node` is its public key -------------------------------------------------------


class Ban(Action, frozen=True, tag="ban"):
    """Shut a node out; drop what waits of it. `why` is told to it."""

    node: bytes
    why: str


class Unban(Action, frozen=True, tag="unban"):
    """Let a banned node in again, as a newcomer."""

    node: bytes


class Quarantine(Action, frozen=True, tag="quarantine"):
    """Let a node work on, audit all of it, and train on nothing of it, until it is released."""

    node: bytes
    why: str


class Release(Action, frozen=True, tag="release"):
    """End a node's quarantine; its standing is as it was."""

    node: bytes


class Annotate(Action, frozen=True, tag="annotate"):
    """The operator's own words for a node; `name` is shown to the public. Both empty: none."""

    node: bytes
    name: str = ""
    note: str = ""


# --- about the run --------------------------------------------------------------------------------


class PauseRun(Action, frozen=True, tag="pause"):
    """Make no more updates until the run is resumed."""

    why: str


class ResumeRun(Action, frozen=True, tag="resume"):
    """Let a paused run go on."""


class PublishNow(Action, frozen=True, tag="publish"):
    """Publish the learner's version, though it is not due."""


class RollBack(Action, frozen=True, tag="roll_back"):
    """Go on from the weights of a published version, under a new number."""

    version: int


class Pin(Action, frozen=True, tag="pin"):
    """Keep a version's checkpoint for good."""

    version: int


class Unpin(Action, frozen=True, tag="unpin"):
    """Keep it no longer than others."""

    version: int


NodeAction: TypeAlias = Ban | Unban | Quarantine | Release | Annotate
RunAction: TypeAlias = PauseRun | ResumeRun | PublishNow | RollBack | Pin | Unpin
Any: TypeAlias = NodeAction | RunAction

_DECODER = msgspec.json.Decoder(Any)


def to_json(action: Any) -> str:
    """As the ledger keeps it."""
    return msgspec.json.encode(action).decode()


def from_json(text: str) -> Any:
    """From `to_json`; ConfigError if another version of this program wrote it."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"an operator's request cannot be read: {error}.") from error


def checked(action: Any) -> Any:
    """The action; ConfigError if its texts are longer than anybody needs."""
    for name, most in (("why", MOST_WHY), ("name", MOST_NAME), ("note", MOST_NOTE)):
        if len(getattr(action, name, "")) > most:
            raise ConfigError(f"{name} may have {most} characters.")
    return action
