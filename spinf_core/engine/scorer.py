"""Runs passes on a model, and turns what they read into scores per question."""

from __future__ import annotations

from collections.abc import Sequence

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


def question_scores(job: Job, values: Values) -> tuple[QuestionScore, ...]:
    """From the log-probability of each pair [P] to the scores of each question, in the job's order.

    A question that read a number which is not finite has scores that are not finite.
    """
    scores: dict[int, QuestionScore] = {}
    for group in job.groups:
        count, width = len(group.questions), group.plan.width
        block = values[group.first : group.first + count * width].reshape(count, width)
        logprob, p, residual = group.plan.score(block)
        finite = np.logical_and.reduce(np.isfinite(logprob), axis=1)
        made = map(QuestionScore, map(tuple, logprob.tolist()), map(tuple, p.tolist()), residual.tolist(), finite.tolist())
        scores |= zip(group.questions.tolist(), made, strict=True)
    return tuple(scores[question] for question in range(job.questions))
