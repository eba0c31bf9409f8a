"""The loop that keeps the device busy: forms passes of whatever waits, launches them, and takes in what they read.

One thread launches and one waits for results, so that the next pass is made while one runs. Whatever waits when a pass is
formed shares it, whosever it is; it is formed late, so that what arrives meanwhile finds room in it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Condition, Thread

import attrs

from spinf_core.compiler.jobs import Part
from spinf_core.engine.reading import Reading
from spinf_core.engine.recovery import Outcome, Recovery
from spinf_core.engine.scheduler import Scheduler, Work

_log = logging.getLogger(__name__)

Chosen = list[tuple[Work, Part]]
LEAD = 0.5  # of a pass's expected time: when it is over, the next pass is formed


@attrs.frozen(eq=False)
class FinishedPass:
    """A pass that ran.

    Attributes:
        chosen: its parts and whose they are. outcomes: the values of each, or why there are none.
        seconds: that the device was busy with it.
    """

    chosen: Chosen
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def rows(self) -> int:
        """Without padding."""
        return sum(part.rows for _, part in self.chosen)


@attrs.frozen(eq=False)
class _Launched:
    chosen: Chosen
    outcome: Reading | list[Outcome]
    began: float


class DeviceLoop:
    """Runs passes until nothing more can come.

    Args:
        passes: launches them. scheduler: says what shares the next one.
        changed: its lock guards the scheduler; notified when work arrives.
        ahead: passes that may be launched and not finished.
        over: whether no work can come any more; called with the lock held.
        finished: called with every pass that ran, by the thread that waits for results.
        died: called when the loop cannot go on.
    """

    def __init__(
        self,
        passes: Recovery,
        scheduler: Scheduler,
        changed: Condition,
        *,
        ahead: int,
        over: Callable[[], bool],
        finished: Callable[[FinishedPass], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._passes = passes
        self._scheduler = scheduler
        self._changed = changed
        self._ahead = ahead
        self._over = over
        self._finished = finished
        self._died = died
        self._in_flight: deque[int] = deque()  # rows of each pass
        self._next_at = 0.0  # when the next pass is formed while one runs
        self._seconds_per_row = 0.0
        self._dead = False
        self._launched: SimpleQueue[_Launched | None] = SimpleQueue()
        self._launcher = Thread(target=self._guard, args=(self._launch_passes,), name="spinf-device", daemon=True)
        self._finisher = Thread(target=self._guard, args=(self._finish_passes,), name="spinf-results", daemon=True)
        self._launcher.start()
        self._finisher.start()

    def join(self) -> None:
        """Wait until the loop is over."""
        self._launcher.join()
        self._finisher.join()

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            _log.critical("the engine's thread died; no request can be scored any more", exc_info=error)
            self._launched.put(None)
            with self._changed:
                self._dead = True
                self._changed.notify_all()
            self._died(error)

    # The thread that launches

    def _launch_passes(self) -> None:
        while (chosen := self._next_pass()) is not None:
            began = time.perf_counter()
            for work, _ in chosen:
                work.begin_pass(began)
            self._launched.put(_Launched(chosen, self._passes.launch([part for _, part in chosen]), began))
            with self._changed:
                for work, _ in chosen:
                    work.end_launch()
                self._changed.notify_all()
        self._launched.put(None)

    def _next_pass(self) -> Chosen | None:
        """What runs next; waits for it. None once everything is done and nothing can come."""
        with self._changed:
            while True:
                patience = self._patience()
                if self._dead:
                    return None
                if patience == 0 and (chosen := self._scheduler.next_pass()):
                    self._in_flight.append(sum(part.rows for _, part in chosen))
                    self._expect()
                    return chosen
                if self._over():
                    return None
                self._changed.wait(patience or None)

    def _patience(self) -> float | None:
        """Seconds until a pass may be formed; None: not before another is finished."""
        if not self._in_flight:
            return 0
        if len(self._in_flight) >= self._ahead:
            return None
        return max(0.0, self._next_at - time.perf_counter())

    def _expect(self) -> None:
        """Say when the pass behind the one that begins to run now is formed; with the lock held."""
        if len(self._in_flight) == 1:
            self._next_at = time.perf_counter() + LEAD * self._in_flight[0] * self._seconds_per_row

    # The thread that waits for results

    def _finish_passes(self) -> None:
        before = 0.0
        while (launched := self._launched.get()) is not None:
            outcomes = self._passes.values(launched.outcome, len(launched.chosen))
            now = time.perf_counter()
            finished = FinishedPass(launched.chosen, outcomes, now - max(before, launched.began))
            before = now
            with self._changed:
                self._in_flight.popleft()
                self._seconds_per_row = finished.seconds / finished.rows
                self._expect()
                self._changed.notify_all()
            self._finished(finished)
