"""What inputs are asked, before a content is known: made once for all inputs of the same queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from spinf_core.compiler.floors import Floors
from spinf_core.compiler.options import OptionPlan
from spinf_core.compiler.questions import Question, Questions
from spinf_core.protocol import ParsedQuery


@attrs.frozen(eq=False)
class Prompt:
    """One filled template with its options: question `number` of its input's job.

    Attributes:
        query: whose. values: the combination that filled it. tokens: its count in usage.
        longer_options: whether some option has several tokens.
        floor: its floor's number in the request, or None.
    """

    query: ParsedQuery
    values: Mapping[str, str]
    tokens: int
    longer_options: bool
    floor: int | None

    @classmethod
    def of(cls, query: ParsedQuery, question: Question, plan: OptionPlan, floors: Floors) -> Prompt:
        """The prompt of a question whose options are read by a plan."""
        tokens = len(question.template.ids) + plan.tokens_after_first
        return cls(query, question.values, tokens, bool(plan.chains), floors.number(question))


@attrs.define(eq=False)
class HeadSums:
    """The questions whose templates share their first word, as rows behind that word. What their plans add is counted for those
    that have one.

    Attributes:
        questions: how many. tokens: on all their branches. longest: on the longest path.
    """

    questions: int = 0
    tokens: int = 0
    longest: int = 0

    def add(self, rest: int, plan: OptionPlan | None) -> None:
        """Count a question whose template has so many tokens behind its first word."""
        self.questions += 1
        self.tokens += rest + (plan.tokens_after_first if plan else 0)
        self.longest = max(self.longest, rest + (plan.longest_lead_in if plan else 0))


@attrs.frozen(eq=False)
class Asked:
    """The questions of an input's queries, query by query.

    Attributes:
        questions: whose, and what.
        plans, prompts: of each question; None where the content's end decides how the options tokenize.
        undecided: the numbers of those questions.
        heads: the distinct first words of the templates, which are tokenized together with a content's end.
        rests: of each question, its template's first word and the tokens behind that.
        sums: by first word, what its questions come to.
    """

    questions: tuple[tuple[ParsedQuery, Question], ...]
    plans: tuple[OptionPlan | None, ...]
    prompts: tuple[Prompt | None, ...]
    undecided: tuple[int, ...]
    heads: tuple[str, ...]
    rests: tuple[tuple[str, tuple[int, ...]], ...]
    sums: Mapping[str, HeadSums]

    @classmethod
    def of(cls, queries: Iterable[tuple[ParsedQuery, Questions]], floors: Floors) -> Asked:
        """What is asked by these queries of a request with those floors."""
        questions = tuple((query, question) for query, some in queries for question in some)
        templates = [question.template for _, question in questions]
        sums = {template.head: HeadSums() for template in templates}
        for _, question in questions:
            template = question.template
            sums[template.head].add(len(template.ids) - template.head_tokens, question.plan)
        return cls(
            questions=questions,
            plans=tuple(question.plan for _, question in questions),
            prompts=tuple(
                None if question.plan is None else Prompt.of(query, question, question.plan, floors)
                for query, question in questions
            ),
            undecided=tuple(number for number, (_, question) in enumerate(questions) if question.plan is None),
            heads=tuple(sums),
            rests=tuple((template.head, template.ids[template.head_tokens :]) for template in templates),
            sums=sums,
        )


@attrs.frozen(eq=False)
class AllAsked:
    """What a request asks, whatever its contents are.

    Attributes:
        floors: of all its questions.
        lists: what is asked by each distinct list of queries, in the order in which its inputs first have them.
    """

    floors: Floors
    lists: tuple[Asked, ...]
