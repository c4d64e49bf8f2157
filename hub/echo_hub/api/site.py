"""What the routes share, and how they get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import trio
from fastapi import Depends, Request

from echo_hub.api.feed import Feed
from echo_hub.api.overview import OverviewMaker
from echo_hub.api.security import Doorman
from echo_hub.api.view import View


@dataclass
class Site:
    """One hub's API."""

    view: View
    overview: OverviewMaker
    doorman: Doorman
    feed: Feed
    exporting: trio.Lock = field(default_factory=trio.Lock)


def site_of(request: Request) -> Site:
    """The site that a request is for."""
    site: Site = request.app.state.site
    return site


Here = Annotated[Site, Depends(site_of)]


async def view_here(request: Request) -> View:
    """The hub that a request is about."""
    return site_of(request).view


TheView = Annotated[View, Depends(view_here)]
