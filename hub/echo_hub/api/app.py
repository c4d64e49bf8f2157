"""The ASGI application: routes under /api/v1, the page, and what guards them."""

from __future__ import annotations

from pathlib import PurePath

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from echo_hub.api import errors
from echo_hub.api.guards import Guards
from echo_hub.api.models import Health
from echo_hub.api.routes import (
    actions,
    docs,
    events,
    exports,
    learner,
    metrics,
    nodes,
    overview,
    planner,
    public,
    rollouts,
    session,
    versions,
)
from echo_hub.api.site import Site, TheView
from echo_hub.dashboard import ASSETS
from echo_p2p import __version__

SERVED = frozenset({".js", ".css", ".svg", ".png", ".ico", ".woff2", ".webmanifest"})
_ROUTERS = (
    session,
    overview,
    nodes,
    versions,
    exports,
    rollouts,
    learner,
    planner,
    events,
    actions,
    public,
)
_DESCRIPTION = (
    "Operate a run of echo-p2p: everything that the dashboard shows and does. Send "
    "`Authorization: Bearer TOKEN` where the hub wants a log-in."
)


def make_app(site: Site) -> Guards:
    """The application of one hub, guarded."""
    app = FastAPI(
        title="echo-p2p hub",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        generate_unique_id_function=_operation_id,
        responses=errors.RESPONSES,
    )
    app.state.site = site
    errors.install(app)
    v1 = APIRouter(prefix="/api/v1")
    for module in _ROUTERS:
        v1.include_router(module.router)
    v1.include_router(_health)
    app.include_router(v1)
    app.include_router(metrics.router)
    app.include_router(docs.router)
    _serve_page(app)
    dashboard = site.view.config.dashboard
    return Guards(
        app,
        doorman=site.doorman,
        names={dashboard.host, *dashboard.names},
        public=dashboard.public,
    )


def _operation_id(route: APIRoute) -> str:
    return route.name


_health = APIRouter(tags=["health"])


@_health.get("/health")
async def get_health(view: TheView) -> Health:
    """Answers as long as the hub does; needs no log-in."""
    return Health(status="ok", run=view.config.run.id)


class _Assets(StaticFiles):
    """The dashboard's files: those that a browser needs, and none of Python's."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if PurePath(path).suffix not in SERVED:
            raise HTTPException(404, "there is no such file.")
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"  # asked again, and answered 304
        return response


def _serve_page(app: FastAPI) -> None:
    """The dashboard's files: one page, whatever it is asked to show."""
    index = ASSETS / "index.html"
    app.mount("/static", GZipMiddleware(_Assets(directory=ASSETS)), name="static")

    async def page(path: str = "") -> Response:
        if path.startswith(("api/", "static/")):
            raise HTTPException(404, "there is no such page.")
        return FileResponse(index, headers={"cache-control": "no-cache"})

    app.add_api_route("/{path:path}", page, methods=["GET"], include_in_schema=False)
