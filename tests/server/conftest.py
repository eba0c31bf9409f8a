from __future__ import annotations

import copy
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn

from spinf_core.engine.loading import Loaded
from spinf_core.engine.selftest import SelfTest
from spinf_core.engine.service import ScoringService
from spinf_core.engine.sizes import Sizes
from spinf_core.packs.catalog import NO_PACKS, Catalog
from spinf_core.packs.loading import load_catalog
from spinf_core.plugins import discover
from spinf_core.server.app import build_app
from spinf_core.server.state import ServerState
from spinf_core.settings import Settings, load_settings
from spinf_core.stack import Model
from spinf_core.testing.toy import ToyModel

PLUGINS = discover(only=())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The toy is too small for two: they would only wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def settings_with(**flags: Any) -> Settings:
    """Settings from nothing but these, written `table__name`."""
    return load_settings({name.replace("__", "."): value for name, value in flags.items()}, environ={})


def toy_loaded(settings: Settings | None = None, model: Model | None = None, budget: int = 512) -> Loaded:
    return Loaded(
        id="toy",
        names=frozenset({"toy", "toy-alias"}),
        manifest=None,
        family="toy",
        scheme="fp32",
        model=model or ToyModel(),
        settings=settings or settings_with(),
        sizes=Sizes.up_to(budget, 2048),
        budget=budget,
        max_rows=2048,
        self_test=SelfTest((), "0", 0.0),
        fingerprint="fp_toy",
        fingerprint_inputs={},
        composition=(("model", "toy", "tests"),),
    )


class LiveServer:
    """A server on loopback, in this process."""

    def __init__(self, settings: Settings, service: ScoringService | None) -> None:
        self.state = ServerState(settings, PLUGINS, service)
        app, _ = build_app(self.state, PLUGINS.frontends)
        # Told the protocol, asyncio switches Nagle's algorithm off, as it does for a server that binds by itself.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


Serve = Callable[..., LiveServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers of the toy model: `serve(server__token="x")`; `loaded=` another model, `service=None` none yet."""
    started: list[tuple[LiveServer, ScoringService | None]] = []

    def start(loaded: Loaded | None = None, ready: bool = True, packs: Catalog = NO_PACKS, **flags: Any) -> LiveServer:
        settings = settings_with(**flags)
        service = None
        if ready:
            service = ScoringService(loaded or toy_loaded(settings), packs=packs, max_waiting=settings.server.queue)
        server = LiveServer(settings, service)
        started.append((server, service))
        return server

    yield start
    for server, service in started:
        server.stop()
        if service is not None and not service.degraded:
            service.close()


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve()


def request_body(content: str = "A red gate in the north wing.", **changes: Any) -> dict[str, Any]:
    queries = [
        {"id": "red", "template": "\nIs it red?\nAnswer:{?}", "options": [" yes", " no"]},
        {"id": "where", "template": "\nIt is in the{?}", "options": [" north", " wing", " north wing"]},
    ]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "scoring": {"queries": queries}}
    return body | changes


def public_scores(response: Mapping[str, Any]) -> list[Any]:
    """All that must not depend on other requests."""
    return [response["results"], response["warnings"]]


PACKS = Path(__file__).parents[2] / "fixtures/packs"
PACK_NAMES = ("moderation", "support-triage", "product-listings", "reviews", "news")


def fixture_pack(name: str = "moderation") -> dict[str, Any]:
    """The JSON of a demonstration pack."""
    value: dict[str, Any] = json.loads((PACKS / name / "0.1.0.json").read_text(encoding="utf-8"))
    return value


def toy_pack(name: str = "moderation", **changes: Any) -> dict[str, Any]:
    """A demonstration pack, written for the toy model."""
    return copy.deepcopy(fixture_pack(name) | {"model": "toy"} | changes)


def catalog_of(folder: Path, *packs: dict[str, Any], **flags: Any) -> Catalog:
    """A catalog of these packs, written to a folder."""
    for number, pack in enumerate(packs):
        (folder / f"{number}.json").write_text(json.dumps(pack), encoding="utf-8")
    settings = settings_with(features__packs=(str(folder),), features__official_packs=False, **flags)
    return load_catalog(settings, PLUGINS, {"toy", "toy-alias"}, lambda line: None)


def loaded_for_packs(**flags: Any) -> Loaded:
    """The toy model, whose tokenizer has few words, with room for words spelled in letters."""
    return toy_loaded(settings_with(limits__max_option_tokens=20, **flags))


@pytest.fixture(scope="session")
def toy_packs(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The demonstration packs as the toy model's."""
    return catalog_of(tmp_path_factory.mktemp("packs"), *map(toy_pack, PACK_NAMES))


@pytest.fixture(scope="session")
def service(toy_packs: Catalog) -> Iterator[ScoringService]:
    """The toy model with those packs."""
    service = ScoringService(loaded_for_packs(), packs=toy_packs)
    yield service
    service.close()
