"""What all of them stand on: who asks, what went wrong, what was done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PeerId = Annotated[str, StringConstraints(min_length=40, max_length=64, pattern=r"^[1-9A-Za-z]+$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]


class Model(BaseModel):
    """Base of all that is sent and received."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(Model):
    """Any error's body. `code` is for programs; `message` says what happened, `fix` what to do."""

    code: str
    message: str
    fix: str = ""


class Session(Model):
    """Who asks. `csrf` must come back as the header X-CSRF-Token with every request that is not GET
    or HEAD, unless it carries `Authorization: Bearer TOKEN`."""

    authenticated: bool
    required: bool
    """Whether this hub asks for a log-in."""
    csrf: str | None
    run: str | None
    """The run's id, once authenticated."""


class Login(Model):
    token: Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class PauseRequest(Model):
    why: Sentence = "an operator paused it."


class Done(Model):
    """An action's outcome. `done` is false if it waits for the update in hand to end."""

    done: bool
    sentence: str


class Health(Model):
    status: Literal["ok"]
    run: Annotated[str, Field(description="The run's id.")]
