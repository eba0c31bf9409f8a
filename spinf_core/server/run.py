"""The life of a server process: listen, load, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from spinf_core.default_model import chosen_model
from spinf_core.engine.loading import load
from spinf_core.engine.service import ScoringService
from spinf_core.engine.warmup import warm_up
from spinf_core.errors import SetupError
from spinf_core.packs.loading import load_catalog, pack_rows, served_names
from spinf_core.records import Frontend
from spinf_core.registry import Plugins, Registered, composition_table
from spinf_core.server.app import build_app
from spinf_core.server.interface import RunningFrontend
from spinf_core.server.middleware import JsonLines, PlainLines
from spinf_core.server.state import ServerState, draining
from spinf_core.settings import Settings

_log = logging.getLogger("spinf")

EXHAUSTED = 3
"""The exit status of a server that must be started anew."""
ANSWERING_SECONDS = 5
"""How long such a server may take to send the answers that are due."""


def serve(settings: Settings, plugins: Plugins, note: Callable[[str], None]) -> int:
    """Serve until a signal ends the process, or the device's memory is taken for good; the exit status.

    Liveness answers as soon as the process listens, readiness once the model is loaded and warm. The first SIGTERM or SIGINT
    refuses new requests and finishes what was accepted, within `drain_seconds`; a second one stops at once.

    Raises:
        SetupError: something is missing or wrong that can be told before the model is loaded.
    """
    _log_to_stderr(settings)
    chosen = choose_frontends(settings, plugins)
    state = ServerState(settings, plugins)
    app, running = build_app(state, chosen)
    name, why = chosen_model(settings.engine.model, plugins)
    host = settings.server.host or ("127.0.0.1" if _open(settings) else "0.0.0.0")
    config = uvicorn.Config(
        app, host, settings.server.port, log_config=None, access_log=False, lifespan="off", server_header=False
    )
    reach = ""
    if settings.server.host is None:
        reach = " (this machine only, as no token is set; use --token or --host to change that)" if _open(settings) else ""

    def listening(port: int) -> None:
        note(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}{reach}")
        for frontend in running:
            threading.Thread(target=_run_frontend, args=(frontend, state), daemon=True).start()

    server = _Server(config, state, listening, lambda: _load(state, name, why, chosen, note))
    try:
        server.run()
    except SystemExit as error:  # how uvicorn says that it cannot listen, beside a line in the log
        raise SetupError(
            f"cannot listen on {host}:{settings.server.port}, see the line above; choose another --port or --host"
        ) from error
    finally:
        gc.unfreeze()  # libraries tell at the end of what they find uncollected
    if state.service is not None:
        state.service.close()
    if state.error is not None:
        note(f"spinf: {state.error}")
        return 2
    if server.exhausted is not None:
        note(f"spinf: {server.exhausted}")
        return EXHAUSTED
    if server.loading:
        # A thread that loads a model cannot be stopped, and torch aborts when the interpreter ends beneath it.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
    return 0


def choose_frontends(settings: Settings, plugins: Plugins) -> list[Registered[Frontend]]:
    """The front ends asked for, or all."""
    if settings.server.frontends is None:
        return list(plugins.frontends)
    return [plugins.frontend(name) for name in settings.server.frontends]


def _open(settings: Settings) -> bool:
    return settings.server.token is None and settings.server.trusted_token is None


def _run_frontend(frontend: RunningFrontend, state: ServerState) -> None:
    try:
        frontend.run(state)
    except Exception:
        _log.exception("front end %s failed; the others go on", type(frontend).__name__)


def _load(state: ServerState, name: str, why: str, frontends: list[Registered[Frontend]], note: Callable[[str], None]) -> None:
    # Packs come first: what is wrong with them should be known before a model is loaded for a minute.
    packs = load_catalog(state.settings, state.plugins, served_names(state.plugins, name), note)
    loaded = load(name, why, state.settings, state.plugins, note)
    warm_up(loaded, loaded.settings.engine.warmup, note)
    service = ScoringService(loaded, packs=packs, max_waiting=state.settings.server.queue)
    fronts = (("front end", item.record.name, item.origin) for item in frontends)
    note(composition_table([*loaded.composition, *pack_rows(packs), *fronts]))
    # What is here now stays: the collector of garbage need not go over it, which would hold up every request for 0.1 s.
    gc.collect()
    gc.freeze()
    state.service = service
    note("ready")


class _Server(uvicorn.Server):
    """uvicorn, with loading beside serving and a drain before the end."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, listening: Callable[[int], None], load: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._state = state
        self._listening = listening
        self._load_model = load
        self._loader = threading.Thread(target=self._load, name="spinf-load", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.exhausted: str | None = None
        """Why the process must be started anew, where it must."""

    @property
    def loading(self) -> bool:
        """Whether the model is still being loaded."""
        return self._loader.is_alive()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listen, then load on another thread."""
        await super().startup(sockets)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            self._listening(self.servers[0].sockets[0].getsockname()[1])
            self._loader.start()

    def _load(self) -> None:
        try:
            self._load_model()
        except Exception as error:
            self._state.error = str(error) if isinstance(error, SetupError) else f"the model could not be loaded: {error!r}"
            if not isinstance(error, SetupError):
                _log.exception("the model could not be loaded")
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """See `uvicorn.Server.on_tick`, which is called ten times a second and tells whether to stop."""
        service = self._state.service
        if self.exhausted is None and service is not None and service.exhausted:
            self.exhausted = service.degraded
            self.config.timeout_graceful_shutdown = ANSWERING_SECONDS
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second."""
        if self._stopping or self._loop is None:
            self.force_exit = self.should_exit = True
            return
        self._stopping = True
        self._state.draining = True
        _log.info("%s: finishing what was accepted", signal.Signals(sig).name)
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    async def _drain(self) -> None:
        """Wait for accepted requests, refuse those that take too long; uvicorn waits for the responses to be sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._state.settings.server.drain_seconds
        while loop.time() < deadline and self._state.service is not None and self._state.service.waiting:
            await asyncio.sleep(0.05)
        if self._state.service is not None:
            self._state.service.abandon(draining())
        self.config.timeout_graceful_shutdown = max(1, int(deadline - loop.time()))
        self.should_exit = True


def _log_to_stderr(settings: Settings) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.server.log_format == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("spinf").setLevel(logging.DEBUG if settings.server.debug else logging.INFO)
    logging.getLogger("spinf_core").setLevel(logging.DEBUG if settings.server.debug else logging.INFO)
