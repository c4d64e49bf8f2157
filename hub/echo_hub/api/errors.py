"""Errors as every route answers them: a `models.Problem`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from echo_hub.api.models import Problem
from echo_p2p.errors import ConfigError, EchoError, IdentityError, LedgerError

RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request is no HTTP request of this API."},
    401: {"model": Problem, "description": "Log in first."},
    403: {
        "model": Problem,
        "description": "From another site, or without its CSRF token.",
    },
    404: {"model": Problem, "description": "There is no such thing."},
    408: {"model": Problem, "description": "The body did not come in time."},
    409: {"model": Problem, "description": "The run is not in a state for this."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "A value is wrong."},
    429: {"model": Problem, "description": "Too often; Retry-After says when."},
    503: {"model": Problem, "description": "The hub cannot do it now."},
}


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(code=code, message=message, fix=fix)


def missing(what: str, fix: str = "") -> ApiError:
    """There is no such thing."""
    return ApiError(404, "not_found", f"there is no {what}.", fix)


def problem(
    status: int, code: str, message: str, fix: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    """A problem as a response."""
    body = Problem(code=code, message=message, fix=fix).model_dump()
    return JSONResponse(body, status_code=status, headers=headers)


def install(app: FastAPI) -> None:
    """Answer errors in this form everywhere."""

    @app.exception_handler(ApiError)
    async def _api(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.problem.model_dump(), status_code=error.status)

    @app.exception_handler(EchoError)
    async def _ours(_: Request, error: EchoError) -> JSONResponse:
        status = 503 if isinstance(error, LedgerError) else 409
        if isinstance(error, IdentityError):
            status = 404
        code = {ConfigError: "refused", IdentityError: "not_found"}.get(type(error), "unavailable")
        return problem(status, code, error.message, error.fix)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        codes = {404: "not_found", 405: "not_allowed", 408: "too_slow", 413: "too_large"}
        code = codes.get(error.status_code, "bad_request")
        return problem(
            error.status_code, code, str(error.detail), headers=dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def _bug(_: Request, error: Exception) -> JSONResponse:
        return problem(500, "internal", f"the hub made a mistake: {type(error).__name__}.")

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        told = [
            f"{'.'.join(str(part) for part in one['loc'][1:]) or one['loc'][0]}: {one['msg']}"
            for one in error.errors()[:5]
        ]
        return problem(422, "invalid", "; ".join(told)[:1000])
