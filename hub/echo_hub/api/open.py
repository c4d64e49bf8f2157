"""The API of a hub that is open: put together, and served for as long as it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from echo_hub.api.app import make_app
from echo_hub.api.overview import OverviewMaker
from echo_hub.api.security import Doorman
from echo_hub.api.server import read_token, serving
from echo_hub.api.site import Site
from echo_hub.api.view import View, view_of
from echo_hub.paths import RunFolder
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.service import Hub


@asynccontextmanager
async def open_site(view: View, *, token: str | None) -> AsyncIterator[Site]:
    """What the routes share, with its tasks."""
    async with open_nursery() as nursery:
        nursery.start_soon(view.sample)
        yield Site(view=view, overview=OverviewMaker(view, list), doorman=Doorman(token))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_api(hub: Hub, folder: RunFolder) -> AsyncIterator[str | None]:
    """Serve a hub's page and API; the URL, or None where `dashboard.enabled` is false."""
    section = hub.config.dashboard
    if not section.enabled:
        yield None
        return
    token = read_token(folder.root / section.token_file) if section.token_file else None
    view = view_of(hub, folder)
    try:
        async with (
            open_site(view, token=token) as site,
            serving(make_app(site), section, folder.root) as url,
        ):
            yield url
    finally:
        view.reader.close()
