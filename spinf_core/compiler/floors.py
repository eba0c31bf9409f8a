"""The floors of a request: its questions on an empty content, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from spinf_core.compiler.jobs import Job, build_job
from spinf_core.compiler.options import OptionPlan
from spinf_core.compiler.questions import FloorKey, Question


@attrs.frozen(eq=False)
class Floors:
    """The distinct floors of a request, numbered in the order in which its questions first need them.

    Attributes:
        numbers: of each floor, by what decides it.
        plans, branches: of each, to build the job of those that are not cached.
        tokens: that they count in usage.
        bos: what stands before every branch.
    """

    numbers: Mapping[FloorKey, int]
    plans: tuple[OptionPlan, ...]
    branches: tuple[tuple[int, ...], ...]
    tokens: int
    bos: tuple[int, ...]

    @classmethod
    def of(cls, questions: Iterable[Question], bos: tuple[int, ...]) -> Floors:
        """The floors of these questions."""
        first: dict[FloorKey, tuple[OptionPlan, tuple[int, ...]]] = {}
        for question in questions:
            if question.floor is not None:
                key, plan = question.floor
                first.setdefault(key, (plan, question.template.ids))
        return cls(
            numbers={key: number for number, key in enumerate(first)},
            plans=tuple(plan for plan, _ in first.values()),
            branches=tuple(branch for _, branch in first.values()),
            tokens=sum(len(branch) + plan.tokens_after_first for plan, branch in first.values()),
            bos=bos,
        )

    def __len__(self) -> int:
        return len(self.plans)

    def number(self, question: Question) -> int | None:
        """The number of a question's floor; None where it has none."""
        return None if question.floor is None else self.numbers[question.floor[0]]

    def job(self, numbers: Sequence[int]) -> Job:
        """The job of some of the floors: branches without a content."""
        return build_job(self.bos, [self.branches[n] for n in numbers], [self.plans[n] for n in numbers])
