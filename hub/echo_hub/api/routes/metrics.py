"""/metrics, for Prometheus. With a token it wants `Authorization: Bearer TOKEN`."""

from __future__ import annotations

import trio
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from echo_hub.api.metrics import exposition
from echo_hub.api.site import Here
from echo_hub.ledger import browse

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics_text(site: Here) -> Response:
    """The run's numbers in Prometheus' text format."""
    overview = await site.overview.get()
    newest = await site.view.reader.read(browse.version_lines, limit=1)
    learner = newest[0].metrics if newest else {}
    text = await trio.to_thread.run_sync(exposition, overview, learner, site.feed.watchers)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
