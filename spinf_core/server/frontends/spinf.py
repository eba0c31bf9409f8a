"""The scoring API: `/v1/score`, models, packs, and `/v0` for trusted callers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import attrs
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from spinf_core.engine.loading import Loaded
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected
from spinf_core.options import TABLES
from spinf_core.packs.catalog import Catalog
from spinf_core.packs.listing import listing
from spinf_core.server.formed import formed_request, formed_response, translate
from spinf_core.server.interface import FrontendContext
from spinf_core.server.state import ServerState, finished


class SpinfFrontend:
    """The hosted spinf API."""

    def routes(self, state: ServerState) -> APIRouter:
        """See `RoutesFrontend`."""
        router = APIRouter()
        router.include_router(_public(state))
        router.include_router(_trusted(state))
        return router


def build(context: FrontendContext) -> SpinfFrontend:
    """The front end's factory."""
    return SpinfFrontend()


def _public(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/score")
    async def score(request: Request) -> Response:
        return await state.score(request)

    @router.get("/v1/models")
    async def models() -> Response:
        service = _service(state)
        return JSONResponse(models_listing(service.loaded, service.packs, int(state.started)))

    @router.get("/v1/packs")
    async def packs() -> Response:
        return JSONResponse(listing(_service(state).packs))

    @router.get("/v1/packs/{pack_id:path}")
    async def pack(pack_id: str, version: str | None = None) -> Response:
        return JSONResponse(_service(state).packs.find(pack_id, version).pack.raw)

    return router


def _service(state: ServerState) -> ScoringService:
    """The service as soon as there is one, draining or not."""
    return state.service or state.ready_service()


def models_listing(loaded: Loaded, packs: Catalog, started: int) -> dict[str, Any]:
    """The body of `GET /v1/models`, for spinf's clients (`models`) and OpenAI's (`data`)."""
    model, manifest = loaded.model, loaded.manifest
    features = {"extraction": False, "generation": False, "media": [], "packs": sorted(packs.ids)}
    entry = {
        "id": loaded.id,
        "name": manifest.name if manifest else loaded.id,
        "aliases": list(manifest.aliases) if manifest else [],
        "status": "available",
        "family": loaded.family,
        "head": model.head,
        "capabilities": sorted(model.capabilities),
        "media": sorted(model.media),
        "quant": loaded.scheme,
        "batch_invariant": loaded.self_test.invariant,
        "system_fingerprint": loaded.fingerprint,
        "features": features,
        "limits": attrs.asdict(loaded.settings.limits),
    }
    listed = {"id": loaded.id, "object": "model", "created": started, "owned_by": "spinf"}
    return {"object": "list", "data": [listed], "models": [entry]}


def _trusted(state: ServerState) -> APIRouter:
    async def only_trusted(request: Request) -> None:
        if not request.state.trusted:
            raise Rejected("invalid_token", "this path is for trusted callers; send the server's trusted token")

    router = APIRouter(prefix="/v0", dependencies=[Depends(only_trusted)])

    @router.post("/drain")
    async def drain() -> Response:
        state.draining = True
        return JSONResponse({"draining": True, "waiting": state.service.waiting if state.service else 0})

    @router.delete("/drain")
    async def end_drain() -> Response:
        state.draining = False
        return JSONResponse({"draining": False, "waiting": state.service.waiting if state.service else 0})

    @router.get("/info")
    async def info() -> Response:
        service = _service(state)
        return JSONResponse(info_body(state, service.loaded) | {"statistics": attrs.asdict(service.statistics())})

    @router.post("/score")
    async def score(request: Request) -> Response:
        service = state.ready_service()
        formed = await asyncio.to_thread(formed_request, await state.read_body(request))
        ticket = service.submit(formed, trusted=True, id_=request.state.request_id)
        try:
            response = await finished(request, service, ticket)
        except Rejected as error:
            raise translate(error) from None
        content = await asyncio.to_thread(lambda: json.dumps(formed_response(response), ensure_ascii=False, allow_nan=False))
        return Response(content, media_type="application/json")

    return router


def info_body(state: ServerState, loaded: Loaded) -> dict[str, Any]:
    """What produces the scores: the composition, the fingerprint and what it is made of, the settings without secrets."""
    settings = {
        table: {
            field.name: _shown(getattr(getattr(loaded.settings, table), field.name))
            for field in attrs.fields(cls)
            if field.repr
        }
        for table, cls in TABLES.items()
    }
    return {
        "model": loaded.id,
        "system_fingerprint": loaded.fingerprint,
        "fingerprint_inputs": dict(loaded.fingerprint_inputs),
        "composition": [{"what": what, "which": which, "from": origin} for what, which, origin in loaded.composition],
        "self_test": attrs.asdict(loaded.self_test),
        "sizes": list(loaded.sizes.listed),
        "token_budget": loaded.budget,
        "max_tokens": loaded.max_rows,
        "settings": settings,
        "plugins": [attrs.asdict(plugin) for plugin in state.plugins.loaded],
    }


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list | frozenset):
        return [_shown(each) for each in value]
    if hasattr(value, "items"):
        return {str(name): _shown(each) for name, each in value.items()}
    return str(value)
