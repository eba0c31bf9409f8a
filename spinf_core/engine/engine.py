"""The library: `Engine("smollm2-135m").score(request)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import Any, Self

from spinf_core.compiler.compile import Compiler
from spinf_core.default_model import default_model, gpu_present
from spinf_core.engine.floors import FloorCache
from spinf_core.engine.loading import load
from spinf_core.engine.results import low_mass_warnings, results, usage
from spinf_core.engine.scorer import Scorer
from spinf_core.errors import Rejected, SetupError
from spinf_core.plugins import discover
from spinf_core.protocol import Features, ParsedRequest, ScoreRequest, ScoreResponse, parse_request, request_id
from spinf_core.protocol.usage import Timing
from spinf_core.registry import Plugins
from spinf_core.settings import Settings, load_settings


class Engine:
    """A loaded model that scores requests. A context manager; safe to use from several threads, one request at a time.

        with Engine("smollm2-135m") as engine:
            response = engine.score({"messages": […], "scoring": {"queries": […]}})
            response.results[0].queries[0].combinations[0].options[0].p

    Args:
        model: id or alias of a served model, a checkpoint folder, or a Hub id; None: the settings' one, else the default.
        settings: layered settings; None reads the environment and the file it names.
        plugins: a composition; None discovers what is installed.
        progress: called with a line for each stage of loading; None says nothing.

    Attributes:
        model_id: the served model.
        fingerprint: what every response carries as `system_fingerprint`.
        composition: rows of the start-up table: what, which, from where.

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
    ) -> None:
        plugins = plugins or discover()
        settings = settings or load_settings(plugins=plugins)
        name, why = model or settings.engine.model, "asked for"
        if name is None:
            name, why = default_model(plugins, gpu_present())
        loaded = load(name, why, settings, plugins, progress or (lambda line: None))
        self.model_id = loaded.id
        self.fingerprint = loaded.fingerprint
        self.composition = loaded.composition
        self._names = loaded.names
        self._limits = loaded.settings.limits
        self._features = Features()
        self._compiler = Compiler(loaded.model.tokenizer, min(loaded.max_rows, loaded.model.max_positions))
        cache_bytes = loaded.settings.engine.floor_cache_bytes if loaded.self_test.invariant else 0
        self._scorer: Scorer | None = Scorer(
            loaded.model, loaded.sizes, loaded.budget, loaded.max_rows, FloorCache(cache_bytes)
        )
        self._lock = Lock()

    def score(self, request: Mapping[str, Any] | ScoreRequest, *, trusted: bool = True) -> ScoreResponse:
        """Score a request.

        Args:
            request: as a JSON object would hold it, or typed.
            trusted: whether the request's own `limits` and `features` count; each is capped by the engine's.

        Raises:
            Rejected: with the code, the message and the dotted path of what is wrong.
        """
        began = time.perf_counter()
        body = request if isinstance(request, ScoreRequest) else dict(request)
        parsed = parse_request(body, limits=self._limits, features=self._features, trusted=trusted)
        self._check_model(parsed)
        compiled = self._compiler.compile(parsed)
        compiled_at = time.perf_counter()
        with self._lock:
            if self._scorer is None:
                raise SetupError("the engine is closed; make a new one")
            started = time.perf_counter()
            scores = self._scorer.run(compiled)
        done = time.perf_counter()
        return ScoreResponse(
            id=request_id(),
            created=int(time.time()),
            model=parsed.model or self.model_id,
            system_fingerprint=self.fingerprint,
            results=results(compiled, scores),
            warnings=(*parsed.warnings, *compiled.warnings, *low_mass_warnings(compiled, scores)),
            usage=usage(compiled, scores.rows),
            timing=Timing(
                wall_ms=1000 * (done - began),
                queue_ms=1000 * (started - compiled_at),
                compile_ms=1000 * (compiled_at - began),
                score_ms=1000 * (done - started),
                gpu_busy_ms=1000 * scores.busy_seconds,
            ),
            endpoint=parsed.endpoint,
        )

    def _check_model(self, request: ParsedRequest) -> None:
        if request.model is not None and request.model.casefold() not in self._names:
            raise Rejected(
                "model_not_served",
                f"model {request.model!r} is not served here; {self.model_id} is",
                "model",
            )

    def close(self) -> None:
        """Give the model's memory back. A closed engine scores no more."""
        with self._lock:
            self._scorer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
