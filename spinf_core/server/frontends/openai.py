"""The chat alias, by which the OpenAI SDKs reach the scoring API: `scoring` travels in `extra_body`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from spinf_core.server.interface import FrontendContext
from spinf_core.server.state import ServerState


class OpenAIFrontend:
    """`POST /v1/chat/completions`."""

    def routes(self, state: ServerState) -> APIRouter:
        """See `RoutesFrontend`."""
        router = APIRouter()

        @router.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            return await state.score(request, missing_scoring="scoring_required", extra={"choices": []})

        return router


def build(context: FrontendContext) -> OpenAIFrontend:
    """The front end's factory."""
    return OpenAIFrontend()
