"""Front ends of plugins: mounted behind core's rules, refused where they clash, running beside the server."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, Request, Response
from fastapi.testclient import TestClient

from spinf_core import Frontend, hookimpl
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected, SetupError
from spinf_core.plugins import discover
from spinf_core.registry import Plugins
from spinf_core.server import run
from spinf_core.server.app import build_app
from spinf_core.server.state import ServerState

from .conftest import request_body, settings_with, toy_loaded


class Routes:
    """Answers one path, from within a router of a router."""

    path, method = "/verdict/score", "POST"

    def __init__(self, context: Any) -> None:
        self.context = context

    def routes(self, state: ServerState) -> APIRouter:
        inner, outer = APIRouter(), APIRouter(prefix=self.path[: self.path.rindex("/")])

        async def answer(request: Request) -> Response:
            if request.headers.get("x-odd"):
                raise Rejected("invalid_field", "odd")
            return await state.score(request)

        inner.add_api_route(self.path[self.path.rindex("/") :], answer, methods=[self.method])
        outer.include_router(inner)
        return outer


class Score(Routes):
    path = "/v1/score"


class Health(Routes):
    path, method = "/healthz", "GET"


class Nothing:
    def __init__(self, context: Any) -> None:
        pass


class Running:
    done = threading.Event()

    def __init__(self, context: Any) -> None:
        pass

    def run(self, state: ServerState) -> None:
        self.done.set()
        raise ConnectionError("the other port is taken")


def composed(*names: str) -> Plugins:
    records = [Frontend(name=name.lower(), summary=name, factory=f"{__name__}:{name}") for name in names]
    return discover(only=(), extra=[("verdict", SimpleNamespace(spinf_frontends=hookimpl(lambda: records)))])


def app_of(plugins: Plugins, **flags: Any) -> Any:
    settings = settings_with(**flags)
    service = ScoringService(toy_loaded(settings))
    return build_app(ServerState(settings, plugins, service), plugins.frontends)


def test_a_plugins_paths_are_behind_cores_tokens_ids_and_errors() -> None:
    app, _ = app_of(composed("Routes"), server__token="secret")
    client = TestClient(app)
    assert client.post("/verdict/score", json=request_body()).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    scored = client.post("/verdict/score", json=request_body(), headers=headers)
    assert (scored.status_code, scored.headers["x-request-id"]) == (200, scored.json()["id"])
    odd = client.post("/verdict/score", json=request_body(), headers=headers | {"X-Odd": "1"})
    assert (odd.status_code, odd.json()["error"]["code"]) == (400, "invalid_field")


@pytest.mark.parametrize(
    ("name", "clash"), [("Score", "POST /v1/score, which spinf of"), ("Health", "GET /healthz, which core")]
)
def test_two_front_ends_that_claim_one_path_are_refused_naming_both(name: str, clash: str) -> None:
    with pytest.raises(SetupError) as refused:
        app_of(composed(name))
    assert clash in str(refused.value)
    assert f"front end {name.lower()} of" in str(refused.value)


def test_an_object_that_is_no_front_end_is_refused() -> None:
    with pytest.raises(SetupError, match=r"nothing of .* has neither"):
        app_of(composed("Nothing"))


def test_a_running_front_end_that_fails_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    _, (frontend,) = app_of(composed("Running"))
    with caplog.at_level(logging.ERROR):
        run._run_frontend(frontend, ServerState(settings_with(), composed()))
    assert Running.done.is_set()
    assert "front end Running failed" in caplog.text
