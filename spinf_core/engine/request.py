"""One request on its way through the service: what it waits for, what it has, what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np

from spinf_core.compiler.compile import CompiledRequest
from spinf_core.compiler.jobs import Job, Part, split
from spinf_core.compiler.questions import FloorKey
from spinf_core.engine.floors import QuestionScore
from spinf_core.engine.reading import Values
from spinf_core.engine.scheduler import Work
from spinf_core.engine.scorer import question_scores
from spinf_core.packs.request import PackRun
from spinf_core.protocol import ParsedRequest, ScoreResponse
from spinf_core.protocol.response import InputResult


class JobRun:
    """A job and the values that its parts have read so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._values = np.full(len(job.pair_node), np.nan)
        self._missing = len(job.pair_node)
        self._scores: tuple[QuestionScore, ...] | None = None

    def fill(self, part: Part, values: Values) -> None:
        """Take the values of a part."""
        self._values[part.pairs] = values
        self._missing -= len(part.pairs)

    @property
    def complete(self) -> bool:
        """Whether every pair was read."""
        return self._missing == 0

    def scores(self) -> tuple[QuestionScore, ...]:
        """Of every question, once complete."""
        if self._scores is None:
            self._scores = question_scores(self.job, self._values)
        return self._scores


class Ticket(Work):
    """A request that was accepted.

    Attributes:
        id: of the response.
        future: of the response.
        parsed, compiled: None until they are. packs: that run on every input.
        floors: of the request, by key, as they come in.
        results: of inputs, by their numbers, as they are made.
        rows, busy_seconds: what its parts took of passes. floor_rows: of floors that were read because it asked first.
    """

    def __init__(self, id_: str) -> None:
        super().__init__(())
        self.id = id_
        self.future: Future[ScoreResponse] = Future()
        self.parsed: ParsedRequest | None = None
        self.packs: tuple[PackRun, ...] = ()
        self.compiled: CompiledRequest | None = None
        self.floors: dict[FloorKey, QuestionScore] = {}
        self.results: dict[int, InputResult] = {}
        self.rows = self.floor_rows = 0
        self.busy_seconds = 0.0
        self.accepted = time.perf_counter()
        self.compiled_at = self.started = self.accepted
        self._begun = False
        self._runs: list[JobRun] = []
        self._by_job: dict[int, JobRun] = {}

    def begin(self, compiled: CompiledRequest, own_floors: list[int], budget: int, max_rows: int) -> None:
        """Make parts of a compiled request: one job per input, and one of the floors that it reads by itself.

        Args:
            compiled: the request.
            own_floors: numbers of those floors.
            budget: rows of a shared pass. max_rows: rows of the largest job that runs alone.
        """
        self.compiled = compiled
        self.compiled_at = self.started = time.perf_counter()
        jobs = [entry.job for entry in compiled.inputs]
        self._own_floors = own_floors
        if own_floors:
            jobs.append(compiled.floor_job(own_floors))
        self._runs = [JobRun(job) for job in jobs]
        self._by_job = {id(run.job): run for run in self._runs}
        self._parts = _parts(jobs, budget, max_rows)

    def begin_pass(self, now: float) -> None:
        """See `Work.begin_pass`."""
        if not self._begun:
            self._begun = True
            self.started = now

    def fill(self, part: Part, values: Values) -> None:
        """Take the values of a part that ran."""
        run = self._by_job[id(part.job)]
        run.fill(part, values)
        if run.complete and self._own_floors and run is self._runs[-1]:
            assert self.compiled is not None
            for number, score in zip(self._own_floors, run.scores(), strict=True):
                self.floors[self.compiled.floors[number]] = score

    @property
    def complete(self) -> bool:
        """Whether every input and every floor was read."""
        assert self.compiled is not None
        return self.floors_complete and all(run.complete for run in self._runs)

    @property
    def floors_complete(self) -> bool:
        """Whether every floor was read."""
        assert self.compiled is not None
        return len(self.floors) == len(self.compiled.floors)

    def inputs_to_answer(self) -> list[int]:
        """Numbers of the inputs that were read, have finite scores, and have no result yet."""
        assert self.compiled is not None
        inputs = (n for n in range(len(self.compiled.inputs)) if n not in self.results and self._runs[n].complete)
        return [n for n in inputs if all(score.finite for score in self._runs[n].scores())]

    def scores_of(self, number: int) -> tuple[QuestionScore, ...]:
        """Of an input that was read, per question."""
        return self._runs[number].scores()

    def input_scores(self) -> tuple[tuple[QuestionScore, ...], ...]:
        """Per input, per question."""
        assert self.compiled is not None
        return tuple(run.scores() for run in self._runs[: len(self.compiled.inputs)])

    def floor_scores(self) -> tuple[QuestionScore, ...]:
        """Per floor of the request."""
        assert self.compiled is not None
        return tuple(self.floors[key] for key in self.compiled.floors)


def _parts(jobs: list[Job], budget: int, max_rows: int) -> Iterator[Part]:
    """A job over the budget runs alone up to `max_rows`, beyond it in several parts."""
    for job in jobs:
        yield from split(job, budget if job.rows <= budget else max_rows)
