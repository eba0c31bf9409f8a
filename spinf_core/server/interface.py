"""What a front end is.

A front end's factory takes a `FrontendContext` and returns an object with one of two methods. `routes` gives a FastAPI router,
which core mounts behind its own authentication, limits and request ids; its handlers find `request.state.request_id` and
`request.state.trusted`, call `state.score(request)`, and raise `Rejected` for what the caller can mend:

    class Echo:
        def routes(self, state):
            router = APIRouter()

            @router.post("/echo/score")
            async def score(request: Request) -> Response:
                return await state.score(request)

            return router

`run` serves in its own way, on a thread of its own, until the process ends.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs
from fastapi import APIRouter

from spinf_core.server.state import ServerState


@attrs.frozen(kw_only=True)
class FrontendContext:
    """What a front end's factory is given.

    Attributes:
        name: as registered.
        settings: an instance of the record's settings class, or None.
    """

    name: str
    settings: object | None = None


@runtime_checkable
class RoutesFrontend(Protocol):
    """A front end that core mounts."""

    def routes(self, state: ServerState) -> APIRouter:
        """Its paths."""
        ...


@runtime_checkable
class RunningFrontend(Protocol):
    """A front end that serves by itself."""

    def run(self, state: ServerState) -> None:
        """Serve; returns when it is done, or never."""
        ...
