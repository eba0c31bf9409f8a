"""From a query as sent to one that can be compiled: every rule that needs no tokenizer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import attrs

from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol.combinations import Values, combinations_key, expand
from spinf_core.protocol.features import Features
from spinf_core.protocol.request import Calibration, Generate, Query, Scoring
from spinf_core.protocol.templates import Template
from spinf_core.protocol.text import quoted

Kind = Literal["scored", "text", "number", "currency", "generated"]

MAX_SEARCHED_TOKENS = 64
MAX_GENERATED_TOKENS = 100
DEFAULT_SEARCHED_TOKENS = 16
DEFAULT_TOP_K = 5

_EXTRACTION_FIELDS = ("max_tokens", "top_k", "calibration", "generate")


@attrs.frozen(kw_only=True)
class Extraction:
    """How the answer of an extraction slot is found.

    Attributes:
        max_tokens: longest answer.
        top_k: how many answers a search returns.
        calibration: maps the top answer's probability, or None.
        generate: how to sample where the answer is generated: `Generate()` samples with the server's choices, None is
            greedy.
    """

    max_tokens: int
    top_k: int
    calibration: Calibration | None
    generate: Generate | None


@attrs.frozen(kw_only=True)
class ParsedQuery:
    """A checked query.

    Attributes:
        id: unique among an input's queries.
        param: dotted path of the query, such as `scoring.queries.0`.
        kind: what the slot takes.
        template: the parsed template.
        combinations: one mapping of placeholder values per prompt; at least one.
        options: the strings to score as given; empty on an extraction slot.
        empty_floor: whether to read the query with no content too.
        case_insensitive: whether an option stands for its case variants too.
        group: the query group, or None.
        extraction: None on a scored query.
        pack: `id@version` of the prompt pack that it belongs to, or None for the caller's own. A pack's query is one object for
            as long as the pack is served.
    """

    id: str
    param: str
    kind: Kind
    template: Template
    combinations: Sequence[Values]
    options: tuple[str, ...]
    empty_floor: bool
    case_insensitive: bool
    group: str | None
    extraction: Extraction | None
    pack: str | None = None

    @property
    def key(self) -> Hashable:
        """What is equal for queries that are equal in every member, down to the order of their values."""
        members = (self.id, self.param, self.kind, self.template, self.options, self.empty_floor, self.case_insensitive)
        return *members, self.group, self.extraction, self.pack, combinations_key(self.combinations)


def parse_queries(
    queries: Iterable[Query], param: str, scoring: Scoring, limits: Limits, features: Features
) -> tuple[ParsedQuery, ...]:
    """Check the queries of one list, whose ids must differ.

    Args:
        queries: as sent.
        param: dotted path of the list.
        scoring: the request's, for the defaults.
        limits: in force.
        features: what is on.

    Raises:
        Rejected: for the first query at fault.
    """
    parsed = []
    seen: set[str] = set()
    for index, query in enumerate(queries):
        where = f"{param}.{index}"
        if query.id in seen:
            raise Rejected("duplicate_id", f"{where}.id repeats {quoted(query.id)}", f"{where}.id")
        seen.add(query.id)
        parsed.append(_parse_query(query, where, scoring, limits, features))
    return tuple(parsed)


def _parse_query(query: Query, param: str, scoring: Scoring, limits: Limits, features: Features) -> ParsedQuery:
    template = Template.parse(query.template, f"{param}.template")
    combinations = expand(query, template, param)
    kind: Kind = template.slot
    extraction = None
    if kind == "scored":
        _check_options(query, param, scoring.case_insensitive, limits.max_options)
    else:
        extraction = _extraction(query, param, kind)
        if query.generate:
            kind = "generated"
        _check_enabled(kind, param, features)
    return ParsedQuery(
        id=query.id,
        param=param,
        kind=kind,
        template=template,
        combinations=combinations,
        options=query.options or (),
        empty_floor=scoring.empty_floor if query.empty_floor is None else query.empty_floor,
        case_insensitive=scoring.case_insensitive,
        group=query.group,
        extraction=extraction,
    )


def _check_options(query: Query, param: str, case_insensitive: bool, most: int) -> None:
    for name in _EXTRACTION_FIELDS:
        if getattr(query, name) not in (None, False):
            raise _invalid(f"{param}.{name}", "is for extraction slots; {?} is scored")
    where = f"{param}.options"
    options = query.options
    if options is None:
        raise _invalid(where, "is required: {?} is scored by its options")
    if not 1 <= len(options) <= most:
        raise Rejected("too_many_options", f"{where} has {len(options)} options; 1 to {most} may be", where)
    compared = [option.strip().casefold() for option in options] if case_insensitive else options
    if "" in options:
        raise _invalid(f"{where}.{options.index('')}", "is empty; an option must have text to score")
    if len(set(compared)) == len(options):
        return
    first: dict[str, int] = {}
    for index, option in enumerate(compared):
        if option in first:
            how = " but for case and spaces" if case_insensitive else ""
            message = f"{where}.{index} {quoted(options[index])} repeats option {first[option]}{how}"
            raise Rejected("duplicate_option", message, f"{where}.{index}")
        first[option] = index


def _extraction(query: Query, param: str, slot: Kind) -> Extraction:
    if query.options is not None:
        raise _invalid(f"{param}.options", "is for scored queries, whose template ends with {?}")
    if not query.generate:
        if query.max_tokens is not None and query.max_tokens > MAX_SEARCHED_TOKENS:
            problem = f"must be at most {MAX_SEARCHED_TOKENS} where the answer is searched for, not {query.max_tokens}"
            raise _invalid(f"{param}.max_tokens", problem)
        return Extraction(
            max_tokens=query.max_tokens or DEFAULT_SEARCHED_TOKENS,
            top_k=query.top_k or DEFAULT_TOP_K,
            calibration=query.calibration,
            generate=None,
        )
    if slot != "text":
        raise _invalid(f"{param}.generate", "needs a {*} slot; numbers and amounts are searched for")
    for name in ("top_k", "calibration"):
        if getattr(query, name) is not None:
            raise _invalid(f"{param}.{name}", "does not go with generate")
    return Extraction(
        max_tokens=query.max_tokens or MAX_GENERATED_TOKENS,
        top_k=1,
        calibration=None,
        generate=query.generate if isinstance(query.generate, Generate) else None,
    )


def _check_enabled(kind: Kind, param: str, features: Features) -> None:
    if kind == "generated":
        if not features.generation:
            where = f"{param}.generate"
            raise Rejected("generation_disabled", f"{where}: this server does not generate answers", where)
    elif not features.extraction:
        where = f"{param}.template"
        message = f"{where}: this server has no extraction slots; end the template with {{?}} and give options"
        raise Rejected("extraction_disabled", message, where)


def _invalid(param: str, problem: str) -> Rejected:
    return Rejected("invalid_field", f"{param} {problem}", param)
