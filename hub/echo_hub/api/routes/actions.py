"""What an operator does: to nodes, to versions, to the run. Each is an action of `control`."""

from __future__ import annotations

from typing import Annotated

import trio
from fastapi import APIRouter, Path

from echo_hub.api.errors import RESPONSES, ApiError
from echo_hub.api.models import Annotation, BanRequest, Done, PauseRequest, PeerId
from echo_hub.api.site import Here, Site
from echo_hub.api.view import key_of
from echo_hub.control import actions
from echo_p2p.errors import EchoError

PATIENCE_S = 10.0
"""An action that waits for the end of an update is answered after so long all the same."""

router = APIRouter(
    tags=["actions"], responses={code: RESPONSES[code] for code in (403, 404, 409, 503)}
)

Node = Annotated[PeerId, Path(description="A node's peer id.")]
Version = Annotated[int, Path(ge=0, le=2**31)]


async def _do(site: Site, action: actions.Any) -> Done:
    outcome = Done(done=False, sentence="It will be done when the update in hand has ended.")
    try:
        with trio.move_on_after(PATIENCE_S):
            outcome = Done(done=True, sentence=await site.view.do(action))
    except EchoError as error:
        raise ApiError(409, "refused", error.message, error.fix) from error
    return outcome


@router.post("/nodes/{node}/ban")
async def ban(site: Here, node: Node, asked: BanRequest) -> Done:
    """Shut a node out; what waits of it is dropped, what was trained on is marked."""
    return await _do(site, actions.Ban(key_of(node), asked.why))


@router.post("/nodes/{node}/unban")
async def unban(site: Here, node: Node) -> Done:
    """Let a banned node in again, as a newcomer."""
    return await _do(site, actions.Unban(key_of(node)))


@router.post("/nodes/{node}/quarantine")
async def quarantine(site: Here, node: Node, asked: BanRequest) -> Done:
    """Let a node work on, audit all of it, and train on nothing of it."""
    return await _do(site, actions.Quarantine(key_of(node), asked.why))


@router.post("/nodes/{node}/release")
async def release(site: Here, node: Node) -> Done:
    """End a node's quarantine."""
    return await _do(site, actions.Release(key_of(node)))


@router.put("/nodes/{node}/annotation")
async def annotate(site: Here, node: Node, words: Annotation) -> Done:
    """A name and a note for a node; both empty takes them away."""
    return await _do(site, actions.Annotate(key_of(node), words.name, words.note))


@router.post("/versions/{version}/rollback")
async def roll_back(site: Here, version: Version) -> Done:
    """Go on from the weights of a published version, under a new number."""
    return await _do(site, actions.RollBack(version))


@router.post("/versions/{version}/pin")
async def pin(site: Here, version: Version) -> Done:
    """Keep a version's checkpoint for good."""
    return await _do(site, actions.Pin(version))


@router.post("/versions/{version}/unpin")
async def unpin(site: Here, version: Version) -> Done:
    """Keep a version's checkpoint no longer than others."""
    return await _do(site, actions.Unpin(version))


@router.post("/run/pause")
async def pause(site: Here, asked: PauseRequest) -> Done:
    """Make no more updates until the run is resumed; nodes stay connected."""
    return await _do(site, actions.PauseRun(asked.why))


@router.post("/run/resume")
async def resume(site: Here) -> Done:
    """Let a paused run go on."""
    return await _do(site, actions.ResumeRun())


@router.post("/run/publish")
async def publish(site: Here) -> Done:
    """Publish the learner's version, though it is not due."""
    return await _do(site, actions.PublishNow())
