"""/api/v1/events: what happened."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from echo_hub.api.errors import RESPONSES, ApiError
from echo_hub.api.models import EventFacts, EventPage
from echo_hub.api.site import Here, TheView
from echo_hub.ledger import browse
from echo_hub.ledger.browse import EventLine

router = APIRouter(tags=["events"])

MOST_WATCHERS = 128


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        503: RESPONSES[503],
    },
)
async def watch(
    site: Here,
    last_event_id: Annotated[
        int | None, Query(ge=0, le=2**53, description="As the header of that name.")
    ] = None,
    last_seen: Annotated[int | None, Header(alias="last-event-id", ge=0, le=2**53)] = None,
) -> StreamingResponse:
    """Server-sent events: `overview`, `alerts`, `update`, `version`, `evaluation`, `nodes` and
    `event`, each with its model as data; `ping` when it is quiet, and `reset` if some were missed.
    The `overview` of the stream has the last ten points of its rewards, not all.

    The header Last-Event-ID, or the query, goes on behind that event. A browser opens six
    connections to a host at most: many tabs should share one stream. A client that does not read
    is let go.
    """
    if site.feed.watchers >= MOST_WATCHERS:
        raise ApiError(503, "busy", f"{MOST_WATCHERS} streams are open already.")
    after = last_event_id if last_seen is None else last_seen
    return StreamingResponse(
        site.feed.watch(after),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


@router.get("/events/history")
async def get_events(
    view: TheView,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    kind: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> EventPage:
    """Events of the ledger, newest first."""
    lines = await view.reader.read(browse.event_lines, before=before, limit=limit, kinds=kind)
    more = len(lines) == limit and lines[-1].id > 1
    return EventPage(
        events=[event_facts(line) for line in lines], next_before=lines[-1].id if more else None
    )


def event_facts(line: EventLine) -> EventFacts:
    """An event with a sentence for people."""
    return EventFacts(
        id=line.id, at=line.at, kind=line.kind, sentence=sentence_of(line.kind, line.detail),
        detail=line.detail,
    )  # fmt: skip


def sentence_of(kind: str, detail: dict[str, object]) -> str:
    """What an event says to people."""
    get = detail.get
    match kind:
        case "node_banned":
            return f"{get('node')} was banned: {get('why')}"
        case "node_unbanned":
            return f"{get('node')} may come back."
        case "node_quarantined":
            return f"{get('node')} is in quarantine: {get('why')}"
        case "node_released":
            return f"{get('node')} is not in quarantine any more."
        case "submission_rejected":
            return f"an answer of {get('node')} was refused: {get('why')}"
        case "group_dropped":
            return f"group {get('group')} was dropped: {get('why')}"
        case "published":
            return f"version {get('version')} was published."
        case "update_refused":
            return f"update {get('version')} was refused: {get('sentence')}"
        case "rolled_back":
            return f"version {get('version')} has the weights of version {get('to')}."
        case "paused":
            return f"the run was paused at version {get('version')}: {get('why')}"
        case "resumed":
            return f"the run goes on from version {get('version')}."
        case "learner_died":
            return f"the learner died: {get('why')}"
        case "nodes_activated":
            return (
                f"{get('started')} nodes were sent to work and {get('stopped')} to standby: "
                f"{get('active')} work now, {get('standby')} stand by."
            )
        case "scale_up" | "scale_down":
            told = "" if get("told") else " Nobody was told (activation.scale_command is not set)."
            return f"{kind}: {get('sentence')}{told}"
        case "scale_failed":
            return f"{get('wish')} did not get through: {get('why')}"
        case "reply_failed":
            return f"the task could not reply to prompt {get('index')}: {get('why')}"
    return kind.replace("_", " ")
