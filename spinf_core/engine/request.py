"""One request on its way through the service: what it waits for, what it has, what it cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import attrs
import numpy as np

from spinf_core.compiler.compile import CompiledInput
from spinf_core.compiler.floors import Floors
from spinf_core.compiler.jobs import Job, Part, split
from spinf_core.compiler.questions import FloorKey
from spinf_core.engine.floors import QuestionScore
from spinf_core.engine.reading import Values
from spinf_core.engine.scheduler import Work
from spinf_core.engine.scorer import JobScores, job_scores
from spinf_core.packs.request import PackRun
from spinf_core.protocol import ParsedRequest, ScoreResponse, Warning
from spinf_core.protocol.response import InputResult

Write = Callable[["Ticket", ScoreResponse], bytes]
"""Writes a response as JSON, in which `InputResult.json` stands for each result."""

LEAST_SHARE = 8
"""A request that is not whole lets inputs run from an eighth of a pass on: it takes longer than making the next pass does."""


class JobRun:
    """A job and the values that its parts have read so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._values = np.full(len(job.pair_node), np.nan)
        self._missing = len(job.pair_node)
        self._scores: JobScores | None = None

    def fill(self, part: Part, values: Values) -> None:
        """Take the values of a part."""
        self._values[part.pairs] = values
        self._missing -= len(part.pairs)

    @property
    def complete(self) -> bool:
        """Whether every pair was read."""
        return self._missing == 0

    def scores(self) -> JobScores:
        """Of every question, once complete."""
        if self._scores is None:
            self._scores = job_scores(self.job, self._values)
        return self._scores


@attrs.frozen
class InputAnswer:
    """What the response says of one input, and warnings about its scores."""

    result: InputResult
    warnings: tuple[Warning, ...]


class Ticket(Work):
    """A request that was accepted. Its parts may run while later inputs are compiled.

    A pass of its own begins with as many inputs as would be left over for the last one, so that beginning early makes no pass
    more where inputs are of one size, and about one at most where they are not; a request of one pass waits until it is
    whole. What follows comes in stretches that are worth a pass.

    Attributes:
        id: of the response.
        future: of the response.
        write: writes that as the JSON that will be sent. body: what it wrote, once the future has the response.
        parsed: None until it is. packs: that run on every input.
        wanted: its distinct floors; None until they are known.
        inputs: those compiled so far.
        floors: of the request, by key, as they come in.
        answers: to inputs, by their numbers, as they are made.
        rows, busy_seconds: what its parts took of passes. floor_rows: of floors that were read because it asked first.
        accepted, ready, started: when it was accepted, when the first of its inputs could run, and when they began to.
        begun: whether they have. launched: whether the pass that they began with was launched.
    """

    def __init__(self, id_: str, *, write: Write | None = None) -> None:
        super().__init__(())
        self.id = id_
        self.future: Future[ScoreResponse] = Future()
        self.write = write
        self.body = b""
        self.parsed: ParsedRequest | None = None
        self.packs: tuple[PackRun, ...] = ()
        self.wanted: Floors | None = None
        self.inputs: list[CompiledInput] = []
        self.floors: dict[FloorKey, QuestionScore] = {}
        self.answers: dict[int, InputAnswer] = {}
        self.rows = self.floor_rows = 0
        self.busy_seconds = 0.0
        self.accepted = self.ready = self.started = time.perf_counter()
        self.begun = self.launched = False
        self._opened = False
        self._early = True
        self._expected = self._budget = self._max_rows = 0
        self._input_rows = self._held_rows = 0
        self._runs: list[JobRun] = []
        self._by_job: dict[int, JobRun] = {}
        self._own_floors: list[int] = []
        self._floor_run: JobRun | None = None
        self._held: list[Job] = []  # until there are enough of them
        self._waiting: deque[Job] = deque()  # for a pass

    def begin(
        self, floors: Floors, own_floors: list[int], inputs: int, budget: int, max_rows: int, *, early: bool = True
    ) -> None:
        """Prepare for a number of inputs.

        Args:
            floors: of the request. own_floors: numbers of those that it reads by itself, in a job of their own.
            inputs: that will be added.
            budget: rows of a shared pass. max_rows: rows of the largest job that runs alone.
            early: whether inputs may run before the last is compiled: when they do, and so what shares a pass, is then chance.
        """
        self.wanted = floors
        self._early = early
        self._expected, self._budget, self._max_rows = inputs, budget, max_rows
        self._own_floors = own_floors
        if own_floors:
            self._floor_run = JobRun(floors.job(own_floors))
            self._by_job[id(self._floor_run.job)] = self._floor_run
            self._hold(self._floor_run.job)

    def add(self, entry: CompiledInput) -> bool:
        """Take the next input; whether it and those that were held back before it wait for a pass now."""
        run = JobRun(entry.job)
        self.inputs.append(entry)
        self._runs.append(run)
        self._by_job[id(run.job)] = run
        self._hold(run.job)
        self._input_rows += run.job.rows
        if not (self.compiled or self._worth_a_pass()):
            return False
        if not self._opened:
            self._opened = True
            self.ready = self.started = time.perf_counter()
        self._waiting += self._held
        self._held, self._held_rows = [], 0
        return True

    def _hold(self, job: Job) -> None:
        self._held.append(job)
        self._held_rows += job.rows

    def _worth_a_pass(self) -> bool:
        if not self._early or self._held_rows < self._budget // LEAST_SHARE:
            return False
        if self._opened:
            return self.begun  # what comes before the first pass is formed would make that larger than it need be
        in_a_pass = max(1, self._budget * len(self.inputs) // self._input_rows)
        return len(self.inputs) > (self._expected - 1) % in_a_pass

    def peek(self) -> Part | None:
        """See `Work.peek`. A job over the budget runs alone up to the largest size, beyond it in several parts."""
        if super().peek() is None and self._waiting:
            job = self._waiting.popleft()
            self._parts = split(job, self._budget if job.rows <= self._budget else self._max_rows)
        return super().peek()

    def begin_pass(self, now: float) -> None:
        """See `Work.begin_pass`."""
        if not self.begun:
            self.begun = True
            self.started = now

    def end_launch(self) -> None:
        """See `Work.end_launch`."""
        self.launched = True

    def fill(self, part: Part, values: Values) -> None:
        """Take the values of a part that ran."""
        run = self._by_job[id(part.job)]
        run.fill(part, values)
        if run is self._floor_run and run.complete:
            assert self.wanted is not None
            keys = list(self.wanted.numbers)
            self.floors |= zip((keys[number] for number in self._own_floors), run.scores().questions(), strict=True)

    @property
    def compiled(self) -> bool:
        """Whether every input is."""
        return self.wanted is not None and len(self.inputs) == self._expected

    @property
    def complete(self) -> bool:
        """Whether every input and every floor was read."""
        return self.compiled and self.floors_complete and all(run.complete for run in self._runs)

    @property
    def floors_complete(self) -> bool:
        """Whether every floor was read."""
        return self.wanted is not None and len(self.floors) == len(self.wanted)

    def inputs_to_answer(self) -> list[int]:
        """Numbers of the inputs that were read and have no answer yet; none while a floor is missing, nor where a score that
        the answer holds is not finite."""
        if not (self.floors_complete and all(score.finite for score in self.floors.values())):
            return []
        inputs = (n for n, run in enumerate(self._runs) if n not in self.answers and run.complete)
        return [n for n in inputs if self._runs[n].scores().finite]

    def scores_of(self, number: int) -> JobScores:
        """Of an input that was read."""
        return self._runs[number].scores()

    def floor_scores(self) -> tuple[QuestionScore, ...]:
        """Per floor of the request."""
        assert self.wanted is not None
        return tuple(self.floors[key] for key in self.wanted.numbers)
