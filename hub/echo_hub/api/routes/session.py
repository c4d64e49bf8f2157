"""/api/v1/session: log in, log out, and the CSRF token that unsafe requests carry."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from echo_hub.api import models
from echo_hub.api.errors import ApiError
from echo_hub.api.guards import cookie_name, session_of
from echo_hub.api.security import LONGEST_SESSION_S, TooManyTriesError, bearer
from echo_hub.api.site import Here

router = APIRouter(tags=["session"])


@router.get("/session")
async def get_session(site: Here, request: Request) -> models.Session:
    """Whether this browser is logged in, and its CSRF token."""
    session = session_of(site.doorman, request)
    authenticated = session is not None
    return models.Session(
        authenticated=authenticated,
        required=site.doorman.wants_token,
        csrf=None if session is None else session.csrf,
        run=site.view.config.run.id if authenticated else None,
    )


@router.post("/session")
async def log_in(
    site: Here, login: models.Login, request: Request, response: Response
) -> models.Session:
    """Log in with the hub's token; sets a cookie that only this browser has."""
    address = request.client.host if request.client else ""
    try:
        right = site.doorman.check_token(login.token, address, time.monotonic())
    except TooManyTriesError as error:
        raise ApiError(
            429, "too_many_tries", f"too many wrong tokens; wait {error.wait_s:.0f} s."
        ) from error
    if site.doorman.wants_token and not right:
        raise ApiError(401, "wrong_token", "this is not the hub's token.")
    session_id, session = site.doorman.open_session(time.monotonic())
    response.set_cookie(
        cookie_name(request),
        session_id,
        max_age=int(LONGEST_SESSION_S),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    csrf = session.csrf if site.doorman.wants_token else site.doorman.open_csrf
    return models.Session(
        authenticated=True,
        required=site.doorman.wants_token,
        csrf=csrf,
        run=site.view.config.run.id,
    )


@router.delete("/session")
async def log_out(site: Here, request: Request, response: Response) -> models.Session:
    """Log out."""
    if bearer(request.headers) is None:
        site.doorman.close_session(request.cookies.get(cookie_name(request)))
    response.delete_cookie(cookie_name(request), path="/", httponly=True, samesite="strict")
    return models.Session(
        authenticated=not site.doorman.wants_token,
        required=site.doorman.wants_token,
        csrf=None,
        run=None,
    )
