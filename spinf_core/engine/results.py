"""From scores to the response: results by input and query, warnings about the scores, counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat

import attrs

from spinf_core.compiler.asked import Prompt
from spinf_core.engine.floors import QuestionScore
from spinf_core.engine.packs import hidden_ids, pack_results
from spinf_core.engine.request import InputAnswer, Ticket
from spinf_core.engine.scorer import JobScores
from spinf_core.errors import Rejected
from spinf_core.protocol import ParsedQuery
from spinf_core.protocol.response import (
    CombinationResult,
    InputResult,
    QueryResult,
    ScoreResponse,
    Warning,
)
from spinf_core.protocol.usage import ContentUsage, PacksUsage, PromptTokensDetails, ScoringUsage, Timing, Usage

LOW_MASS = 0.9


def response(ticket: Ticket, model: str, fingerprint: str) -> ScoreResponse:
    """The response to a request all of whose scores are in.

    Args:
        ticket: the request. model: the served one. fingerprint: of the system.

    Raises:
        Rejected: `engine_error` where the model gave a score that is not a number.
    """
    parsed = ticket.parsed
    assert parsed is not None
    numbers = range(len(ticket.inputs))
    finite = all(ticket.scores_of(number).finite for number in numbers)
    if not (finite and all(score.finite for score in ticket.floor_scores())):
        raise Rejected("engine_error", "the model gave a score that is not a number; the request was not answered")
    answers = list(input_answers(ticket, numbers))
    about_joins = (each for entry in ticket.inputs for each in entry.warnings)
    about_scores = (each for answer in answers for each in answer.warnings)
    silent = hidden_ids(ticket.packs)
    now = time.perf_counter()
    return ScoreResponse(
        id=ticket.id,
        created=int(time.time()),
        model=parsed.model or model,
        system_fingerprint=fingerprint,
        results=tuple(answer.result for answer in answers),
        warnings=(*parsed.warnings, *(each for each in (*about_joins, *about_scores) if each.query_id not in silent)),
        usage=_usage(ticket),
        timing=Timing(
            wall_ms=1000 * (now - ticket.accepted),
            queue_ms=1000 * (ticket.started - ticket.ready),
            compile_ms=1000 * (ticket.ready - ticket.accepted),
            score_ms=1000 * (now - ticket.started),
            gpu_busy_ms=1000 * ticket.busy_seconds,
        ),
        endpoint=parsed.endpoint,
    )


def input_answers(ticket: Ticket, numbers: Sequence[int]) -> Iterator[InputAnswer]:
    """What the response says of some inputs, once their scores and all floors are in; made once."""
    floors = ticket.floor_scores() if numbers else ()
    hidden = frozenset(run.pack.key for run in ticket.packs if not run.include_queries)
    outlines: dict[int, list[_QueryOutline]] = {}  # inputs that are asked the same have one tuple of prompts
    for number in numbers:
        if number not in ticket.answers:
            entry, scores = ticket.inputs[number], ticket.scores_of(number)
            outline = outlines.get(id(entry.prompts))
            if outline is None:
                outline = outlines[id(entry.prompts)] = list(_outline(entry.prompts, floors))
            result = InputResult(
                entry.id,
                tuple(each.result(scores) for each in outline if each.query.pack not in hidden),
                tuple(pack_results(ticket.packs, entry, scores.p)) if ticket.packs else None,
            )
            ticket.answers[number] = InputAnswer(result, tuple(_low_mass_warnings(entry.id, outline, scores)))
        yield ticket.answers[number]


@attrs.frozen(eq=False)
class _QueryOutline:
    """What a query's results have in common, whatever the content.

    Attributes:
        query: whose. at: its questions among those of the input.
        values, floor_p, floor_residual: of each of them.
        longer_options: whether some option has several tokens.
    """

    query: ParsedQuery
    at: slice
    values: tuple[Mapping[str, str], ...]
    floor_p: tuple[tuple[float, ...] | None, ...]
    floor_residual: tuple[float | None, ...]
    longer_options: bool

    def result(self, scores: JobScores) -> QueryResult:
        """The result on one content."""
        texts, at = repeat(self.query.options), self.at
        read = scores.logprob[at], scores.p[at], scores.residual[at]
        return QueryResult(
            self.query.id, tuple(map(CombinationResult, self.values, texts, *read, self.floor_p, self.floor_residual))
        )


def _outline(prompts: Iterable[Prompt], floors: Sequence[QuestionScore]) -> Iterator[_QueryOutline]:
    first = 0
    for _, some in groupby(prompts, key=lambda prompt: id(prompt.query)):
        mine = list(some)
        read = [None if prompt.floor is None else floors[prompt.floor] for prompt in mine]
        yield _QueryOutline(
            query=mine[0].query,
            at=slice(first, first + len(mine)),
            values=tuple(prompt.values for prompt in mine),
            floor_p=tuple(None if floor is None else floor.p for floor in read),
            floor_residual=tuple(None if floor is None else floor.residual for floor in read),
            longer_options=any(prompt.longer_options for prompt in mine),
        )
        first += len(mine)


def _low_mass_warnings(input_id: str, outline: Iterable[_QueryOutline], scores: JobScores) -> Iterator[Warning]:
    """`low_option_mass` for each query of an input whose options, of one token each, hold little of the probability."""
    for each in outline:
        if each.longer_options:
            continue
        residual = sum(scores.residual[each.at]) / len(each.values)
        if residual > LOW_MASS:
            yield Warning(
                code="low_option_mass",
                message=f"{residual:.1%} of the probability went to answers that are not among the options; word the "
                "template so that it leads to them",
                input_id=input_id,
                query_id=each.query.id,
            )


def _usage(ticket: Ticket) -> Usage:
    """Counts; only `processed_tokens` depends on what was cached."""
    floors, packs = ticket.wanted, ticket.packs
    assert floors is not None
    content = sum(entry.content_tokens for entry in ticket.inputs)
    asked = {id(entry.prompts): entry.prompts for entry in ticket.inputs}
    times = Counter(id(entry.prompts) for entry in ticket.inputs)

    def total(count: Callable[[Prompt], int]) -> int:
        return sum(times[key] * sum(map(count, prompts)) for key, prompts in asked.items())

    query_tokens = total(lambda prompt: prompt.tokens)
    queries = {id(prompt.query): prompt.query for prompts in asked.values() for prompt in prompts}
    return Usage(
        prompt_tokens=content + query_tokens + floors.tokens,
        completion_tokens=0,
        prompt_tokens_details=PromptTokensDetails(
            content_tokens=content,
            text_tokens=content,
            query_tokens=query_tokens,
            floor_tokens=floors.tokens,
        ),
        inputs=len(ticket.inputs),
        content=ContentUsage(tokens=content, text_tokens=content),
        scoring=ScoringUsage(
            queries=len(queries),
            combinations=sum(len(query.combinations) for query in queries.values()),
            options=total(lambda prompt: len(prompt.query.options)),
            prompts=sum(len(entry.prompts) for entry in ticket.inputs),
            floor_prompts=len(floors),
            query_tokens=query_tokens,
            floor_tokens=floors.tokens,
        ),
        packs=PacksUsage(count=len(packs), query_tokens=total(lambda prompt: 0 if prompt.query.pack is None else prompt.tokens))
        if packs
        else None,
        processed_tokens=ticket.rows + ticket.floor_rows,
    )
