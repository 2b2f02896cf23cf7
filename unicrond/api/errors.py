"""How the API refuses: always one ErrorOut, whatever went wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from unicrond.api.limits import TooMany
from unicrond.api.models import ErrorOut
from unicrond.errors import BadInput, Refused, StoreUnavailable, Unavailable, UnicronError

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut} for status in (400, 401, 403, 404, 413, 429, 503)
}
_CODES: Mapping[int, str] = {
    400: "bad_input", 403: "forbidden", 404: "not_found", 405: "bad_input", 413: "too_large",
}  # fmt: skip


class NotFound(Exception):  # noqa: N818 - reads as what it is
    """Nothing of that name."""


class Unauthenticated(UnicronError):  # noqa: N818
    """It is not proved who asks."""


def install(app: FastAPI) -> None:
    for error, status, code in (
        (BadInput, 400, "bad_input"),
        (Unauthenticated, 401, "unauthenticated"),
        (Refused, 403, "forbidden"),
        (TooMany, 429, "too_many"),
        (NotFound, 404, "not_found"),
        (StoreUnavailable, 503, "store_unavailable"),
        (Unavailable, 503, "daemon_unavailable"),
    ):
        app.add_exception_handler(error, _handler(status, code))
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(500, _on_bug)
    app.add_middleware(BodyLimit)


def _answer(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status_code=status)


def _handler(status: int, code: str) -> Any:
    async def answer(_: Request, error: Exception) -> JSONResponse:
        return _answer(status, code, str(error))

    return answer


async def _on_bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    words = [f"{'.'.join(str(p) for p in e['loc'][1:])}: {e['msg']}" for e in error.errors()]
    return _answer(400, "bad_input", "; ".join(words))


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _answer(error.status_code, _CODES.get(error.status_code, "internal"), str(error.detail))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("api: %s failed", request.url.path, exc_info=error)
    return _answer(500, "internal", "this is a bug; unicrond's log has the details")


class BodyLimit:
    """Refuses a body that is too long, or of a length not told, before it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_short(dict(scope["headers"])):
            answer = _answer(413, "too_large", f"a body of at most {MAX_BODY_BYTES} bytes, please")
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_short(headers: Mapping[bytes, bytes]) -> bool:
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" not in headers and int(length) <= MAX_BODY_BYTES
