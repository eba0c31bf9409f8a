"""Runs compiled requests on a model: floors that are not cached and inputs, packed into passes, to scores per question."""

from __future__ import annotations

import time

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from spinf_core.compiler.compile import CompiledRequest
from spinf_core.compiler.jobs import Job
from spinf_core.engine.floors import FloorCache, QuestionScore
from spinf_core.engine.packing import lay_out, plan_parts
from spinf_core.engine.reading import read_batch
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import Rejected
from spinf_core.stack import Model


@attrs.frozen(eq=False)
class Scores:
    """What a request's questions scored.

    Attributes:
        inputs: per input, per question of its job.
        floors: per floor of the request.
        rows: rows run, padding excluded.
        busy_seconds: spent in passes.
    """

    inputs: tuple[tuple[QuestionScore, ...], ...]
    floors: tuple[QuestionScore, ...]
    rows: int
    busy_seconds: float


class Scorer:
    """Owns the passes of one model.

    Args:
        model: loaded.
        sizes: the listed sizes.
        budget: rows that jobs share a pass up to.
        max_rows: rows of the largest single job; a larger one is split.
        floors: the cache.
    """

    def __init__(self, model: Model, sizes: Sizes, budget: int, max_rows: int, floors: FloorCache) -> None:
        self.model = model
        self.sizes = sizes
        self.budget = budget
        self.max_rows = max_rows
        self.floors = floors

    def run(self, request: CompiledRequest) -> Scores:
        """Score a request.

        Raises:
            Rejected: `engine_error` where the model gave a number that is not finite.
        """
        began = time.perf_counter()
        known = {number: self.floors.get(key) for number, key in enumerate(request.floors)}
        missing = [number for number, score in known.items() if score is None]
        jobs = [entry.job for entry in request.inputs]
        if missing:
            jobs.append(request.floor_job(missing))
        results, rows = self.run_jobs(jobs)
        if missing:
            for number, score in zip(missing, results.pop(), strict=True):
                known[number] = score
                self.floors.put(request.floors[number], score)
        floors = tuple(score for _, score in sorted(known.items()) if score is not None)
        return Scores(tuple(results), floors, rows, time.perf_counter() - began)

    @torch.inference_mode()
    def run_jobs(self, jobs: list[Job]) -> tuple[list[tuple[QuestionScore, ...]], int]:
        """Scores of every job's questions, and the rows run."""
        values = {id(job): np.full(len(job.pair_node), np.nan) for job in jobs}
        rows = 0
        for parts in plan_parts(jobs, self.budget, self.max_rows):
            batch = lay_out(parts, self.sizes, self.model.axes)
            hidden, _ = self.model.forward(batch.pass_)
            for part, found in zip(parts, read_batch(self.model, hidden, batch, self.sizes), strict=True):
                values[id(part.job)][part.pairs] = found
                rows += part.rows
        return [question_scores(job, values[id(job)]) for job in jobs], rows


def question_scores(job: Job, values: NDArray[np.float64]) -> tuple[QuestionScore, ...]:
    """From the log-probability of each pair [P] to the scores of each question, in the job's order.

    Raises:
        Rejected: `engine_error` where a value is not finite.
    """
    if not np.isfinite(values).all():
        raise Rejected("engine_error", "the model gave a score that is not a number; the request was not answered")
    scores: dict[int, QuestionScore] = {}
    for group in job.groups:
        count, width = len(group.questions), group.plan.width
        block = values[group.first : group.first + count * width].reshape(count, width)
        logprob, p, residual = group.plan.score(block)
        for row, question in enumerate(group.questions.tolist()):
            scores[question] = QuestionScore(logprob[row], p[row], float(residual[row]))
    return tuple(scores[question] for question in range(job.questions))
