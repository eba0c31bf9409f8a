"""What the server is doing: loading, ready, draining or broken; and the one way of a request through it."""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Any, Literal

import attrs
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from spinf_core.engine.request import Ticket
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected
from spinf_core.protocol import ScoreResponse
from spinf_core.registry import Plugins
from spinf_core.settings import Settings

BODY_SECONDS = 60
"""A body that takes longer to arrive is refused."""


def draining() -> Rejected:
    """What a stopping server answers."""
    return Rejected("draining", "this server finishes what it has and takes nothing new; try another one", retry_after=5)


@attrs.define(eq=False)
class ServerState:
    """The server's state, and what front ends call.

    Attributes:
        settings, plugins: as composed at start.
        service: None until the model is loaded and warm.
        error: why loading failed.
        draining: whether new requests are refused.
        started: seconds since 1970.
        arriving: bytes of bodies that are being read.
    """

    settings: Settings
    plugins: Plugins
    service: ScoringService | None = None
    error: str | None = None
    draining: bool = False
    started: float = attrs.field(factory=time.time)
    arriving: int = 0

    def trust(self, authorization: str | None) -> bool:
        """Whether the bearer of a header is trusted. Without any token everybody is; with an access token alone, its holders.

        Raises:
            Rejected: `invalid_token`.
        """
        token, trusted = self.settings.server.token, self.settings.server.trusted_token
        if token is None and trusted is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            sent = given.strip().encode("latin-1")  # as starlette decodes headers
            if trusted is not None and _same(sent, trusted):
                return True
            if token is not None and _same(sent, token):
                return trusted is None
        raise Rejected("invalid_token", "send the header 'Authorization: Bearer TOKEN' with a token of this server")

    def ready_service(self) -> ScoringService:
        """The service, for a new request.

        Raises:
            Rejected: `warming_up`, `draining` or `model_unavailable`.
        """
        if self.draining:
            raise draining()
        if self.error is not None or (self.service is not None and self.service.degraded):
            raise Rejected("model_unavailable", "the model does not run any more; try another server", retry_after=30)
        if self.service is None:
            raise Rejected("warming_up", "the model is still loading; GET /readyz tells when it is ready", retry_after=5)
        return self.service

    async def score(
        self,
        request: Request,
        *,
        missing_scoring: Literal["invalid_field", "scoring_required"] = "invalid_field",
        extra: dict[str, Any] | None = None,
    ) -> Response:
        """Score the body of a request: read within the limit, run off the event loop, dropped when the client has gone.

        Args:
            request: whose body is a scoring request.
            missing_scoring: the code for a body without `scoring`.
            extra: members added to the response.
        """
        service = self.ready_service()
        body = await self.read_body(request)

        def write(ticket: Ticket, response: ScoreResponse) -> bytes:
            debug = {"engine": {"packed_tokens": ticket.rows + ticket.floor_rows}} if self.settings.server.debug else {}
            return response.to_json((extra or {}) | debug)

        ticket = service.submit(
            body,
            trusted=request.state.trusted,
            missing_scoring=missing_scoring,
            id_=request.state.request_id,
            write=write,
        )
        await finished(request, service, ticket)
        return Response(ticket.body, media_type="application/json")

    async def read_body(self, request: Request) -> bytes:
        """The body, refused while it streams once it is too large.

        The bodies that arrive at the same time take at most what a full queue of the largest would.

        Raises:
            Rejected: `body_too_large`; `concurrency_limit` where too much arrives; `invalid_json` for a body that is compressed
                or, with the status 408, takes too long.
        """
        limit = self.settings.server.max_body_bytes
        too_large = Rejected("body_too_large", f"the body is larger than {limit} bytes; send fewer inputs or questions at once")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise Rejected("invalid_json", f"the body has content-encoding {encoding}; send it as it is, uncompressed")
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    self.arriving += len(chunk)
                    if size > limit:
                        raise too_large
                    if self.arriving > limit * self.settings.server.queue:
                        raise Rejected("concurrency_limit", "too much arrives at once; send this again later", retry_after=1)
                    chunks.append(chunk)
        except TimeoutError:
            raise Rejected(
                "invalid_json", f"the body did not arrive within {BODY_SECONDS} seconds; send the request again", status=408
            ) from None
        finally:
            self.arriving -= size
        return b"".join(chunks)


def _same(given: bytes, expected: str) -> bool:
    return hmac.compare_digest(given, expected.encode("utf-8", "surrogateescape"))


async def finished(request: Request, service: ScoringService, ticket: Ticket) -> ScoreResponse:
    """The response of a ticket.

    Raises:
        ClientDisconnect: the client has gone; the request was dropped.
        Rejected: it was refused.
    """
    answer = asyncio.wrap_future(ticket.future)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not answer.done():
            service.cancel(ticket)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
