"""The results of packs from the scores of their questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spinf_core.compiler.compile import CompiledInput
from spinf_core.packs.request import PackRun, answers_of


def pack_results(
    packs: Sequence[PackRun], entry: CompiledInput, found: Sequence[tuple[float, ...]]
) -> Iterator[dict[str, Any]]:
    """The public result of each pack on one input.

    Args:
        found: the shares of the options of each question.
    """
    shares: dict[str, dict[tuple[str, str | None], Sequence[float]]] = {run.pack.key: {} for run in packs}
    for prompt, share in zip(entry.prompts, found, strict=True):
        if prompt.query.pack is not None:
            shares[prompt.query.pack][prompt.query.id, prompt.values.get("F")] = share
    for run in packs:
        yield run.result(answers_of(shares[run.pack.key], run.pack))


def hidden_ids(packs: Sequence[PackRun]) -> frozenset[str]:
    """Ids of the queries that are not in the result, so that warnings about them would tell the caller nothing."""
    shown = {query.id for run in packs if run.include_queries for query in run.pack.queries}
    return frozenset(query.id for run in packs for query in run.pack.queries) - shown
