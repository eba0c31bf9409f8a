"""Requests for tests, and what is compared of responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spinf_core.protocol import ScoreResponse
from spinf_core.protocol.response import QueryResult

Numbers = dict[tuple[str, str, int], tuple[float | None, ...]]
"""(input id, query id, combination) -> every unrounded number of that question."""


def query(template: str, options: Sequence[str] = (" yes", " no"), id: str = "q", **fields: Any) -> dict[str, Any]:
    """A scored query; `{?}` is added where the template has no slot."""
    return {"id": id, "template": template if "{?}" in template else template + "{?}", "options": list(options), **fields}


def request(content: str, *queries: dict[str, Any], **scoring: Any) -> dict[str, Any]:
    """A request about one content; queries without an id of their own are numbered."""
    numbered = [{**each, "id": each["id"] if each["id"] != "q" else f"q{number}"} for number, each in enumerate(queries)]
    return {"messages": [{"role": "user", "content": content}], "scoring": {"queries": numbered, **scoring}}


def numbers(response: ScoreResponse) -> Numbers:
    """Every unrounded number of a response, to compare bit by bit."""
    found: Numbers = {}
    for result in response.results:
        for answer in result.queries:
            assert isinstance(answer, QueryResult)
            for index, combination in enumerate(answer.combinations):
                values: list[float | None] = [combination.residual, combination.floor_residual]
                for option in combination.options:
                    values += [option.logprob, option.p, option.floor_p]
                found[result.input_id, answer.id, index] = tuple(values)
    return found
