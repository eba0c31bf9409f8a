"""Runs passes on a model, and turns what they read into scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import torch

from spinf_core.compiler.jobs import Job, Part
from spinf_core.engine.floors import QuestionScore
from spinf_core.engine.packing import lay_out
from spinf_core.engine.reading import Reading, Values, read_batch
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import Model


class Scorer:
    """Runs the passes of one model; used by one thread.

    Args:
        model: loaded.
        sizes: the listed sizes.
    """

    def __init__(self, model: Model, sizes: Sizes) -> None:
        self.model = model
        self.sizes = sizes

    @torch.inference_mode()
    def launch(self, parts: Sequence[Part]) -> Reading:
        """Begin a pass of all parts: the log-probability of every pair of each is on its way."""
        batch = lay_out(parts, self.sizes, self.model.axes)
        hidden, _ = self.model.forward(batch.pass_)
        return read_batch(self.model, hidden, batch)


@attrs.frozen(eq=False)
class JobScores:
    """What was read for the questions of a job, in their order.

    Attributes:
        logprob, p, residual: of each question, see `QuestionScore`.
        finite: whether the model gave numbers for all of them.
    """

    logprob: Sequence[tuple[float, ...]]
    p: Sequence[tuple[float, ...]]
    residual: Sequence[float]
    finite: bool

    def questions(self) -> Iterator[QuestionScore]:
        """Each question on its own."""
        finite = (all(map(math.isfinite, logprob)) for logprob in self.logprob)
        return map(QuestionScore, self.logprob, self.p, self.residual, finite)


def job_scores(job: Job, values: Values) -> JobScores:
    """From the log-probability of each pair [P] to the scores of each question.

    A question that read a number which is not finite has scores that are not finite.
    """
    logprob: list[tuple[float, ...]] = []
    p: list[tuple[float, ...]] = []
    residual: list[float] = []
    finite = True
    for group in job.groups:
        count, width = len(group.questions), group.plan.width
        block = values[group.first : group.first + count * width].reshape(count, width)
        found = group.plan.score(block)
        finite = finite and bool(np.isfinite(found[0]).all())
        logprob += zip(*found[0].T.tolist(), strict=True)
        p += zip(*found[1].T.tolist(), strict=True)
        residual += found[2].tolist()
    if len(job.groups) > 1:
        order = np.argsort(np.concatenate([group.questions for group in job.groups])).tolist()
        logprob, p = [logprob[at] for at in order], [p[at] for at in order]
        residual = [residual[at] for at in order]
    return JobScores(logprob, p, residual, finite)
