"""The ASGI application: health, metrics, and the chosen front ends behind core's authentication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, routing
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.routing import BaseRoute

from spinf_core.errors import SetupError
from spinf_core.records import Frontend
from spinf_core.registry import Registered, load_factory
from spinf_core.server.interface import FrontendContext, RoutesFrontend, RunningFrontend
from spinf_core.server.metrics import registry_of
from spinf_core.server.middleware import RequestIds, add_error_handlers
from spinf_core.server.state import ServerState

PROBE = ["GET", "HEAD"]
"""Methods of the health paths: some load balancers probe with HEAD."""


def build_app(state: ServerState, frontends: Iterable[Registered[Frontend]]) -> tuple[FastAPI, list[RunningFrontend]]:
    """The application, and the front ends that serve by themselves.

    Raises:
        SetupError: a front end is not one, or two claim one path.
    """
    app = FastAPI(title="spinf", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(RequestIds)
    add_error_handlers(app)
    app.include_router(_health(state))

    async def authorize(request: Request) -> None:
        request.state.trusted = state.trust(request.headers.get("authorization"))

    app.include_router(_metrics(state), dependencies=[Depends(authorize)])
    claimed = dict.fromkeys(_claims(app.routes), "core")
    running = []
    for item in frontends:
        context = FrontendContext(name=item.record.name, settings=state.settings.of_record(item.record))
        frontend = load_factory(item)(context)
        if isinstance(frontend, RoutesFrontend):
            router = frontend.routes(state)
            name = f"{item.record.name} of {item.origin}"
            for path, method in _claims(router.routes):
                if (other := claimed.setdefault((path, method), name)) != name:
                    raise SetupError(
                        f"front end {name} claims {method} {path}, which {other} already serves; choose one of them with "
                        "--frontends"
                    )
            app.include_router(router, dependencies=[Depends(authorize)])
        elif isinstance(frontend, RunningFrontend):
            running.append(frontend)
        else:
            raise SetupError(f"front end {item.record.name} of {item.origin} has neither routes(state) nor run(state)")
    return app, running


def _claims(routes: Sequence[BaseRoute]) -> list[tuple[str, str]]:
    """The paths and methods that routes serve."""
    # Later versions of FastAPI keep a router that another one includes whole, and bring what looks into it.
    flat: Iterable[Any] = getattr(routing, "iter_route_contexts", iter)(routes)
    return [(route.path, method) for route in flat for method in sorted(getattr(route, "methods", None) or ())]


def _health(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.api_route("/healthz", methods=PROBE)
    async def healthz() -> Response:
        return JSONResponse({"ok": True})

    @router.api_route("/readyz", methods=PROBE)
    async def readyz() -> Response:
        degraded = state.service.degraded if state.service else None
        if state.service is not None and not degraded and not state.draining:
            return JSONResponse({"ready": True, "model": state.service.loaded.id})
        why = {"error": state.error, "degraded": degraded, "draining": state.draining or None}
        found = {name: value for name, value in why.items() if value is not None}
        return JSONResponse({"ready": False, **(found or {"error": "warming_up"})}, 503, {"Retry-After": "5"})

    @router.api_route("/livez", methods=PROBE)
    async def livez() -> Response:
        degraded = state.service.degraded if state.service else state.error or "warming_up"
        return JSONResponse({"live": False, "error": degraded}, 503) if degraded else JSONResponse({"live": True})

    return router


def _metrics(state: ServerState) -> APIRouter:
    router = APIRouter()
    registry = registry_of(state)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
