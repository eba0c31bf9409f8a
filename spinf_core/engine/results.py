"""From scores to the response: results by input and query, warnings about the scores, counts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from spinf_core.compiler.asked import Prompt
from spinf_core.engine.floors import QuestionScore
from spinf_core.engine.packs import Scored, by_query, hidden_ids, pack_results
from spinf_core.engine.request import InputAnswer, Ticket
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
    found = [ticket.scores_of(number) for number in range(len(ticket.inputs))]
    if not all(score.finite for scores in (*found, ticket.floor_scores()) for score in scores):
        raise Rejected("engine_error", "the model gave a score that is not a number; the request was not answered")
    answers = [input_answer(ticket, number) for number in range(len(ticket.inputs))]
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


def input_answer(ticket: Ticket, number: int) -> InputAnswer:
    """What the response says of one input, once its scores and all floors are in; made once."""
    made = ticket.answers.get(number)
    if made is None:
        entry, found = ticket.inputs[number], ticket.scores_of(number)
        scored = list(by_query(entry, found))
        hidden = frozenset(run.pack.key for run in ticket.packs if not run.include_queries)
        result = InputResult(
            entry.id,
            tuple(_queries(scored, ticket.floor_scores(), hidden)),
            tuple(pack_results(ticket.packs, entry, found)) if ticket.packs else None,
        )
        made = ticket.answers[number] = InputAnswer(result, tuple(_low_mass_warnings(entry.id, scored)))
    return made


def _queries(
    scored: Iterable[tuple[ParsedQuery, Scored]], floors: tuple[QuestionScore, ...], hidden: frozenset[str]
) -> list[QueryResult]:
    """The results of the queries that are the caller's own or of a pack whose queries were asked for."""
    return [
        QueryResult(query.id, tuple(_combination(prompt, score, floors) for prompt, score in pairs))
        for query, pairs in scored
        if query.pack not in hidden
    ]


def _combination(prompt: Prompt, score: QuestionScore, floors: tuple[QuestionScore, ...]) -> CombinationResult:
    floor = None if prompt.floor is None else floors[prompt.floor]
    return CombinationResult(
        values=prompt.values,
        texts=prompt.query.options,
        logprob=score.logprob,
        p=score.p,
        residual=score.residual,
        floor_p=None if floor is None else floor.p,
        floor_residual=None if floor is None else floor.residual,
    )


def _low_mass_warnings(input_id: str, scored: Iterable[tuple[ParsedQuery, Scored]]) -> Iterator[Warning]:
    """`low_option_mass` for each query of an input whose options, of one token each, hold little of the probability."""
    for query, pairs in scored:
        if any(prompt.longer_options for prompt, _ in pairs):
            continue
        residual = sum(score.residual for _, score in pairs) / len(pairs)
        if residual > LOW_MASS:
            yield Warning(
                code="low_option_mass",
                message=f"{residual:.1%} of the probability went to answers that are not among the options; word the "
                "template so that it leads to them",
                input_id=input_id,
                query_id=query.id,
            )


def _usage(ticket: Ticket) -> Usage:
    """Counts; only `processed_tokens` depends on what was cached."""
    floors, packs = ticket.wanted, ticket.packs
    assert floors is not None
    content = sum(entry.content_tokens for entry in ticket.inputs)
    prompts = [prompt for entry in ticket.inputs for prompt in entry.prompts]
    query_tokens = sum(prompt.tokens for prompt in prompts)
    queries = {id(prompt.query): prompt.query for prompt in prompts}
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
            options=sum(len(prompt.query.options) for prompt in prompts),
            prompts=len(prompts),
            floor_prompts=len(floors),
            query_tokens=query_tokens,
            floor_tokens=floors.tokens,
        ),
        packs=PacksUsage(
            count=len(packs), query_tokens=sum(prompt.tokens for prompt in prompts if prompt.query.pack is not None)
        )
        if packs
        else None,
        processed_tokens=ticket.rows + ticket.floor_rows,
    )
