"""Around every request: its id, the error envelope, and a line in the log that tells nothing of the content."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spinf_core.errors import Rejected
from spinf_core.protocol import request_id
from spinf_core.server.state import draining

_log = logging.getLogger("spinf.http")

CLIENT_GONE = 499
"""The status in the log of a request whose client hung up; nobody receives it."""


class RequestIds:
    """Gives every HTTP request an id, returns it in `X-Request-Id`, and logs one line when the response is done.

    Outside of everything that may fail, so that a fault of ours is answered with the id too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id_ = request_id()
        scope.setdefault("state", {})["request_id"] = id_
        began = time.perf_counter()
        status = CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", id_.encode())]
            await send(message)

        async def answer(error: Rejected) -> None:
            await error_response(Request(scope), error)(scope, receive, send_with_id)

        try:
            await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and the time that it had to finish is over
            if status != CLIENT_GONE:
                raise
            await answer(draining())
        except Exception:
            if status != CLIENT_GONE:
                raise
            _log.exception("request %s failed", id_)
            await answer(Rejected("engine_error", "the server failed; the failure was logged under this id"))
        finally:
            level = logging.DEBUG if scope["path"] in ("/healthz", "/livez", "/readyz", "/metrics") else logging.INFO
            milliseconds = 1000 * (time.perf_counter() - began)
            fields = {"request_id": id_, "status": status, "ms": round(milliseconds, 1)}
            # Quoted again, as a decoded path may hold a line end and pass for another line of the log.
            _log.log(level, "%s %s", scope["method"], quote(scope["path"]), extra={"fields": fields})


def add_error_handlers(app: FastAPI) -> None:
    """Every error leaves in the public envelope."""

    async def rejected(request: Request, error: Exception) -> Response:
        assert isinstance(error, Rejected)
        return error_response(request, error)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.method} is not allowed on this path; use {allowed or 'another method'}"
            return error_response(request, Rejected("method_not_allowed", message), error.headers)
        return error_response(
            request, Rejected("not_found", "there is nothing at this path; requests are scored at POST /v1/score")
        )

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    app.add_exception_handler(Rejected, rejected)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)


def error_response(request: Request, error: Rejected, headers: Any = None) -> Response:
    """The envelope of an error; a trusted caller also gets the compact `rejected` object."""
    content = error.envelope(request.state.request_id)
    if getattr(request.state, "trusted", False):
        content["rejected"] = {"code": error.code, "message": error.message, "param": error.param}
    found = dict(headers or {})
    if error.retry_after is not None:
        found["Retry-After"] = str(error.retry_after)
    if error.code == "body_too_large" or error.status == 408:
        found["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse(content, error.status, found)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        members: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """Time, level, message, then `name=value` fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = super().format(record)
        return f"{line} {fields}" if fields and not record.exc_info else line
