"""The library: `Engine("smollm2-135m").score(request)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from spinf_core.default_model import chosen_model
from spinf_core.engine.loading import load
from spinf_core.engine.service import ScoringService
from spinf_core.errors import SetupError
from spinf_core.packs.loading import load_catalog, pack_rows, served_names
from spinf_core.plugins import discover
from spinf_core.protocol import ScoreRequest, ScoreResponse
from spinf_core.registry import Plugins
from spinf_core.settings import Settings, load_settings


class Engine:
    """A loaded model that scores requests. A context manager; may be used from several threads, whose requests share passes.

        with Engine("smollm2-135m") as engine:
            response = engine.score({"messages": […], "scoring": {"queries": […]}})
            response.results[0].queries[0].combinations[0].options[0].p

    Args:
        model: id or alias of a served model, a checkpoint folder, or a Hub id; None: the settings' one, else the default.
        settings: layered settings; None reads the environment and the file it names.
        plugins: a composition; None discovers what is installed.
        progress: called with a line for each stage of loading; None says nothing.
        official_packs: whether to load the official prompt packs beside those of the settings, which takes a network the first
            time.

    Attributes:
        model_id: the served model.
        fingerprint: what every response carries as `system_fingerprint`.
        composition: rows of the start-up table: what, which, from where.
        packs: the prompt packs that requests may name.
        service: takes requests without waiting for them; see `ScoringService`.

    Raises:
        SetupError: naming what is missing or wrong, and what to do.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        settings: Settings | None = None,
        plugins: Plugins | None = None,
        progress: Callable[[str], None] | None = None,
        official_packs: bool = False,
    ) -> None:
        plugins = plugins or discover()
        settings = settings or load_settings(plugins=plugins)
        name, why = chosen_model(model or settings.engine.model, plugins)
        note = progress or (lambda line: None)
        packs = load_catalog(settings, plugins, served_names(plugins, name), note, official=official_packs)
        loaded = load(name, why, settings, plugins, note)
        self.model_id = loaded.id
        self.fingerprint = loaded.fingerprint
        self.composition = (*loaded.composition, *pack_rows(packs))
        self.packs = packs
        self.service = ScoringService(loaded, packs=packs)
        self._closed = False

    def score(self, request: Mapping[str, Any] | ScoreRequest, *, trusted: bool = True) -> ScoreResponse:
        """Score a request.

        Args:
            request: as a JSON object would hold it, or typed.
            trusted: whether the request's own `limits` and `features` count; each is capped by the engine's.

        Raises:
            Rejected: with the code, the message and the dotted path of what is wrong.
            SetupError: the engine is closed.
        """
        if self._closed:
            raise SetupError("the engine is closed; make a new one")
        return self.service.score(request, trusted=trusted)

    def close(self) -> None:
        """Finish what runs and stop. A closed engine scores no more."""
        self._closed = True
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
