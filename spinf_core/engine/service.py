"""The scoring service: many requests at once on one device.

Requests are parsed and compiled on worker threads, and the `DeviceLoop` forms passes of whatever waits. The library, the server
and every front end use it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Any, Literal

from spinf_core.compiler.compile import Compiler
from spinf_core.compiler.floors import Floors
from spinf_core.engine.device import DeviceLoop, FinishedPass
from spinf_core.engine.floordesk import FloorDesk
from spinf_core.engine.floors import FloorCache
from spinf_core.engine.loading import Loaded
from spinf_core.engine.memory import DeviceMemory
from spinf_core.engine.recovery import OutOfMemory, Recovery
from spinf_core.engine.request import Ticket, Write
from spinf_core.engine.results import input_answers, response
from spinf_core.engine.scheduler import Scheduler
from spinf_core.engine.scorer import Scorer
from spinf_core.engine.statistics import Counters, Statistics
from spinf_core.errors import Rejected, SetupError
from spinf_core.packs.catalog import NO_PACKS, Catalog
from spinf_core.packs.request import with_packs
from spinf_core.protocol import Features, ParsedRequest, ScoreRequest, ScoreResponse, json_loads, parse_request, request_id

_log = logging.getLogger(__name__)

BEGIN_FIRST, LAUNCH_FIRST = 0.001, 0.02
"""Seconds that a request's first parts have for themselves, to begin and then to be launched, before compiling the others goes
on. The interpreter runs one thread at a time, and a thread that launches hands its turn to any other at every call of torch's,
to get it back when a switch interval is over: it has to be ahead of the device before others compile, or the device waits."""

FLOORS_AT_ONCE = 500
"""Floors of a request that are looked up while nobody else has the lock, some milliseconds."""

Body = bytes | Mapping[str, Any] | ScoreRequest
MissingScoring = Literal["invalid_field", "scoring_required"]


class ScoringService:
    """Scores requests of a loaded model.

    Args:
        loaded: the model.
        packs: that requests may name.
        max_waiting: requests that may be accepted and unfinished at a time; None: any number.

    Raises:
        SetupError: a pack's questions cannot be asked of this model.
    """

    def __init__(self, loaded: Loaded, *, packs: Catalog = NO_PACKS, max_waiting: int | None = None) -> None:
        self.loaded = loaded
        self.packs = packs
        self.features = Features(packs=packs.known)
        invariant = loaded.self_test.invariant
        self._scorer = Scorer(loaded.model, loaded.sizes)
        max_rows = min(loaded.max_rows, loaded.model.max_positions)
        self._compiler = Compiler(loaded.model.tokenizer, max_rows, loaded.settings.limits)
        self._keep_packs()
        self._cache = FloorCache(loaded.settings.engine.floor_cache_bytes if invariant else 0)
        self._desk = FloorDesk(self._cache, loaded.budget, loaded.max_rows) if invariant else None
        self._scheduler = Scheduler(loaded.budget, share=loaded.settings.engine.share_passes and invariant)
        self._max_waiting = max_waiting
        self._open: set[Ticket] = set()
        self._changed = Condition()
        self._closing = False
        self._degraded: str | None = None
        self._exhausted = False
        self._counters = Counters()
        threads = min(4, os.cpu_count() or 1)
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="spinf-prepare")
        # Of their own, so that a response that is due does not queue behind requests that are still to be compiled.
        self._responders = ThreadPoolExecutor(threads, thread_name_prefix="spinf-respond")
        self._device = DeviceLoop(
            Recovery(self._scorer, DeviceMemory(loaded.model.device)),
            self._scheduler,
            self._changed,
            ahead=2 if loaded.model.device.type == "cuda" else 1,
            over=lambda: self._closing and not self._open,
            finished=self._finished,
            died=self._died,
        )

    def _keep_packs(self) -> None:
        for pack in self.packs.packs():
            try:
                self._compiler.keep(pack.queries)
            except Rejected as error:
                raise SetupError(
                    f"pack {pack.key} cannot be asked of {self.loaded.id}: {error.param}: {error.message}"
                ) from None

    # Callers

    def submit(
        self,
        body: Body,
        *,
        trusted: bool = False,
        missing_scoring: MissingScoring = "invalid_field",
        id_: str | None = None,
        write: Write | None = None,
    ) -> Ticket:
        """Accept a request; its ticket's `future` gets the response, or the `Rejected` that refuses it.

        Args:
            body: JSON, or what it says, or typed.
            trusted: whether the body's own `limits` and `features` count.
            missing_scoring: the code for a body without `scoring`.
            id_: of the response; made where it is None.
            write: writes the response as JSON, on a thread of the service's; the ticket's `body` holds it. What can be written
                while the device runs is.

        Raises:
            Rejected: `concurrency_limit` where too many wait; `model_unavailable` where the service is closed or degraded.
        """
        ticket = Ticket(id_ or request_id(), write=write)
        with self._changed:
            if self._closing or self._degraded:
                raise Rejected("model_unavailable", "the engine does not run any more; try another server", retry_after=30)
            if self._max_waiting is not None and len(self._open) >= self._max_waiting:
                raise Rejected(
                    "concurrency_limit",
                    f"{len(self._open)} requests are waiting, as many as this server accepts; send this one again later",
                    retry_after=self._retry_after(),
                )
            self._open.add(ticket)
            # With the lock held, or the workers might be shut down between the two.
            self._workers.submit(self._prepare, ticket, body, trusted, missing_scoring)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Drop what of a request has not started, and free its place. Harmless when it is done."""
        with self._changed:
            self._scheduler.remove(ticket)
            if self._desk is not None:
                self._desk.forget(ticket)
            if ticket in self._open:
                self._finish(ticket, "cancelled")
        ticket.future.cancel()

    def score(self, body: Body, *, trusted: bool = True) -> ScoreResponse:
        """Submit a request and wait for its response."""
        ticket = self.submit(body, trusted=trusted)
        try:
            return ticket.future.result()
        except BaseException:
            self.cancel(ticket)
            raise

    @property
    def waiting(self) -> int:
        """Requests accepted and not finished."""
        return len(self._open)

    @property
    def degraded(self) -> str | None:
        """Why the service cannot score any more; None while it can."""
        return self._degraded

    @property
    def exhausted(self) -> bool:
        """Whether it is degraded because the device's memory is taken for good, which only another process helps."""
        return self._exhausted

    def statistics(self) -> Statistics:
        """Counters."""
        with self._changed:
            return self._counters.statistics(waiting=len(self._open), floors=len(self._cache), floor_bytes=self._cache.bytes)

    def abandon(self, error: Rejected) -> None:
        """Refuse whatever was accepted and is not finished."""
        with self._changed:
            unfinished = list(self._open)
        for ticket in unfinished:
            self._fail(ticket, error)

    def close(self) -> None:
        """Finish what was accepted, then stop. A closed service accepts nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._device.join()
        self._workers.shutdown()
        self._responders.shutdown()

    # Worker threads

    def _prepare(self, ticket: Ticket, body: Body, trusted: bool, missing_scoring: MissingScoring) -> None:
        with self._failing(ticket):
            value = json_loads(body) if isinstance(body, bytes) else body
            value = dict(value) if isinstance(value, Mapping) else value
            limits = self.loaded.settings.limits
            parsed = parse_request(
                value, limits=limits, features=self.features, trusted=trusted, missing_scoring=missing_scoring
            )
            self._check_model(parsed)
            ticket.parsed, ticket.packs = with_packs(parsed, self.packs)
            compilation = self._compiler.begin(ticket.parsed)
            floors = compilation.floors
            shared = self._desk is not None  # else scores depend on what shares a pass, which is then made to recur
            own_floors = [] if shared else list(range(len(floors)))
            ticket.begin(floors, own_floors, len(compilation), self.loaded.budget, self.loaded.max_rows, early=shared)
            self._order_floors(ticket, floors)
            ahead = False
            for entry in compilation.inputs():
                with self._changed:
                    if ticket not in self._open:
                        return  # cancelled meanwhile, or what ran of it has failed
                    if ticket.add(entry):
                        self._run_soon(ticket)
                        if not (ticket.compiled or ahead):
                            ahead = True
                            self._let_launch(ticket)

    def _let_launch(self, ticket: Ticket) -> None:
        """Wait while the first pass of a request begins and is launched, unless it is behind others; with the lock held."""
        self._changed.wait_for(lambda: ticket.begun or ticket not in self._open, BEGIN_FIRST)
        self._changed.wait_for(lambda: ticket.launched or not ticket.begun or ticket not in self._open, LAUNCH_FIRST)

    def _order_floors(self, ticket: Ticket, floors: Floors) -> None:
        """Let a request wait for its floors; a few at a time, so that nobody waits long for the lock."""
        if self._desk is None:
            return
        keys = list(floors.numbers)
        for first in range(0, len(keys), FLOORS_AT_ONCE):
            with self._changed:
                if ticket in self._open:
                    self._desk.order(ticket, floors, keys[first : first + FLOORS_AT_ONCE])

    def _run_soon(self, ticket: Ticket) -> None:
        """Let what of a request can run wait for a pass, beside the floors that somebody wants; with the lock held."""
        if self._desk is not None and self._desk.peek() is not None:
            self._scheduler.add(self._desk)
        self._scheduler.add(ticket)
        self._changed.notify_all()

    @contextmanager
    def _failing(self, ticket: Ticket) -> Iterator[None]:
        """Whatever is raised within fails the ticket, or nobody would ever answer it; a panic of Rust is no `Exception`."""
        try:
            yield
        except BaseException as error:
            self._fail(ticket, error)

    def _check_model(self, request: ParsedRequest) -> None:
        if request.model is not None and request.model.casefold() not in self.loaded.names:
            raise Rejected("model_not_served", f"model {request.model!r} is not served here; {self.loaded.id} is", "model")

    def _begin_response(self, ticket: Ticket) -> None:
        """Make the results of the inputs that are in, while the device runs the others."""
        with self._failing(ticket):
            for answer in input_answers(ticket, ticket.inputs_to_answer()):
                if ticket.write is not None:
                    answer.result.json  # noqa: B018 - kept for the response

    def _respond(self, ticket: Ticket) -> None:
        with self._failing(ticket):
            result = response(ticket, self.loaded.id, self.loaded.fingerprint)
            if ticket.write is not None:
                ticket.body = ticket.write(ticket, result)
            with self._changed:
                if ticket not in self._open:
                    return
                self._finish(ticket, "ok", sum(len(entry.prompts) for entry in ticket.inputs))
            _resolve(ticket.future, lambda future: future.set_result(result))

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        if not isinstance(error, Rejected):
            _log.error("request %s failed", ticket.id, exc_info=error)
            error = Rejected("engine_error", "the engine failed on this request; it was logged under its id")
        elif error.code == "engine_error":
            _log.error("request %s failed: %s", ticket.id, error.message)
        with self._changed:
            if ticket not in self._open:
                return
            self._scheduler.remove(ticket)
            if self._desk is not None:
                self._desk.forget(ticket)
            self._finish(ticket, error.code)
        _resolve(ticket.future, lambda future: future.set_exception(error))

    def _finish(self, ticket: Ticket, outcome: str, questions: int = 0) -> None:
        """With the lock held."""
        self._open.discard(ticket)
        self._counters.count_request(outcome, questions)
        self._changed.notify_all()

    def _retry_after(self) -> int:
        """Seconds in which about half of what waits is done, with the lock held."""
        waiting = sum(entry.job.rows for ticket in self._open for entry in ticket.inputs)
        return int(min(60, max(1, waiting / 2 / self._counters.rows_per_second)))

    # The device's threads

    def _finished(self, pass_: FinishedPass) -> None:
        """Hand the values of a pass to the requests whose they are."""
        done: set[Ticket] = set()
        failed: dict[Ticket, Exception] = {}
        held = 0
        with self._changed:
            self._counters.count_pass(pass_.rows, self.loaded.sizes.fit(pass_.rows) - pass_.rows, pass_.seconds)
            for (work, part), outcome in zip(pass_.chosen, pass_.outcomes, strict=True):
                if isinstance(outcome, OutOfMemory):
                    held = max(held, outcome.held)
                    outcome = Rejected(
                        "request_too_large", "the request did not fit the device's memory; send fewer or shorter inputs"
                    )
                if isinstance(work, FloorDesk):
                    if isinstance(outcome, Exception):
                        failed |= dict.fromkeys(work.fail(part), outcome)
                    else:
                        done |= work.fill(part, outcome)
                    if work.peek() is not None:
                        self._scheduler.add(work)
                elif isinstance(work, Ticket):
                    work.rows += part.rows
                    work.busy_seconds += pass_.seconds * part.rows / pass_.rows
                    if isinstance(outcome, Exception):
                        failed[work] = outcome
                    else:
                        work.fill(part, outcome)
                        done.add(work)
            going = [ticket for ticket in done if ticket in self._open and ticket not in failed]
            complete = [ticket for ticket in going if ticket.complete]
        for ticket, error in failed.items():
            self._fail(ticket, error)
        if held:
            self._exhausted = True
            taken = f"{held / 1e9:.1f} GB of the device's memory stayed taken after a pass that did not fit"
            self._degrade(f"{taken}; restart the server")
        for ticket in going:
            self._responders.submit(self._respond if ticket in complete else self._begin_response, ticket)

    def _died(self, error: BaseException) -> None:
        self._degrade(f"the engine's thread died: {type(error).__name__}")

    def _degrade(self, why: str) -> None:
        with self._changed:
            self._degraded = self._degraded or why
        self.abandon(Rejected("model_unavailable", "the engine stopped; try another server", retry_after=30))


def _resolve(future: Future[ScoreResponse], how: Callable[[Future[ScoreResponse]], None]) -> None:
    """Resolve a future that its caller may have cancelled."""
    if future.set_running_or_notify_cancel():
        how(future)
