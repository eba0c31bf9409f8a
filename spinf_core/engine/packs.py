"""The results of packs from the scores of their questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from spinf_core.compiler.asked import Prompt
from spinf_core.compiler.compile import CompiledInput
from spinf_core.engine.floors import QuestionScore
from spinf_core.packs.request import PackRun, answers_of
from spinf_core.protocol import ParsedQuery

Scored = list[tuple[Prompt, QuestionScore]]


def by_query(entry: CompiledInput, found: Sequence[QuestionScore]) -> Iterator[tuple[ParsedQuery, Scored]]:
    """Each query of an input with the scores of its prompts."""
    for _, some in groupby(zip(entry.prompts, found, strict=True), key=lambda pair: id(pair[0].query)):
        pairs = list(some)
        yield pairs[0][0].query, pairs


def pack_results(packs: Sequence[PackRun], entry: CompiledInput, found: Sequence[QuestionScore]) -> Iterator[dict[str, Any]]:
    """The public result of each pack on one input."""
    shares: dict[str, dict[tuple[str, str | None], Sequence[float]]] = {run.pack.key: {} for run in packs}
    for prompt, score in zip(entry.prompts, found, strict=True):
        if prompt.query.pack is not None:
            shares[prompt.query.pack][prompt.query.id, prompt.values.get("F")] = score.p
    for run in packs:
        yield run.result(answers_of(shares[run.pack.key], run.pack))


def hidden_ids(packs: Sequence[PackRun]) -> frozenset[str]:
    """Ids of the queries that are not in the result, so that warnings about them would tell the caller nothing."""
    shown = {query.id for run in packs if run.include_queries for query in run.pack.queries}
    return frozenset(query.id for run in packs for query in run.pack.queries) - shown
