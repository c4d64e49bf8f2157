"""The API of a hub that is open: put together, and served for as long as it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from echo_hub.api.alarms import Alarms
from echo_hub.api.app import make_app
from echo_hub.api.delivery import Delivery
from echo_hub.api.feed import Feed
from echo_hub.api.overview import OverviewMaker
from echo_hub.api.security import Doorman
from echo_hub.api.server import read_token, serving
from echo_hub.api.site import Site
from echo_hub.api.view import View, view_of
from echo_hub.api.watching import Watcher
from echo_hub.paths import RunFolder
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.service import Hub


@asynccontextmanager
async def open_site(view: View, *, token: str | None) -> AsyncIterator[Site]:
    """What the routes share, with the tasks that keep it up to date and send alerts."""
    rules = view.config.alerts
    alarms, delivery = Alarms(rules), Delivery(rules, view.config.run.id)
    overview, feed = OverviewMaker(view, alarms.shown), Feed(int(view.clock() * 1000))
    watcher = Watcher(view, feed, overview, alarms, delivery)
    async with open_nursery() as nursery:
        nursery.start_soon(view.sample)
        nursery.start_soon(watcher.run)
        nursery.start_soon(delivery.run)
        yield Site(view=view, overview=overview, doorman=Doorman(token), feed=feed)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_api(hub: Hub, folder: RunFolder) -> AsyncIterator[str | None]:
    """Serve a hub's page and API, and send its alerts; the URL, or None where `dashboard.enabled`
    is false."""
    section = hub.config.dashboard
    token = None
    if section.enabled and section.token_file:
        token = read_token(folder.root / section.token_file)
    view = view_of(hub, folder)
    try:
        async with open_site(view, token=token) as site:
            if section.enabled:
                async with serving(make_app(site), section, folder.root) as url:
                    yield url
            else:
                yield None
    finally:
        view.reader.close()
