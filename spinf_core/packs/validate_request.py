"""Problems of a pack's request side: its contexts and its queries, which a draft has too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from spinf_core.errors import Rejected
from spinf_core.packs.checks import Checks, shown
from spinf_core.protocol import Template
from spinf_core.protocol.combinations import MAX_PRODUCT
from spinf_core.protocol.request import MAX_ID_CHARS, MAX_VALUE_CHARS

PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")

_SCORING = ("queries", "empty_floor", "case_insensitive")
_QUERY = ("id", "template", "options", "combinations", "values", "empty_floor", "group")


@attrs.frozen
class QueryShape:
    """What reads need to know of a query: how many options, and the values of `{F}`, None where it has no placeholder."""

    options: int
    values: tuple[str, ...] | None


def check_contexts(found: Checks, value: object, parameters: frozenset[str]) -> None:
    """Note problems of the contexts."""
    if not isinstance(value, Mapping) or not value:
        found.add("contexts", f"must be an object with a context at least, not {shown(value)}")
        return
    used: set[str] = set()
    for name in value:
        text = found.text(value, name, "contexts")
        if text is None:
            continue
        where = f"contexts.{name}"
        names = PLACEHOLDER.findall(text)
        if names.count("X") != 1:
            found.add(where, f"holds {{X}}, the content's place, {names.count('X')} times; it must once")
        for placeholder in dict.fromkeys(names):
            if placeholder != "X" and placeholder not in parameters:
                found.add(where, f"names {{{placeholder}}}, which is no parameter of this pack")
        used |= set(names)
    for name in sorted(parameters - used):
        found.add(f"parameters.{name}", "is in no context")


def check_queries(found: Checks, scoring: object) -> dict[str, QueryShape]:
    """Note problems of the queries; what reads need to know of those without any."""
    if not isinstance(scoring, Mapping):
        found.add("scoring", f"must be an object with queries, not {shown(scoring)}")
        return {}
    found.known(scoring, _SCORING, "scoring")
    for name in ("empty_floor", "case_insensitive"):
        found.boolean(scoring, name, "scoring")
    queries = scoring.get("queries")
    if not isinstance(queries, list) or not queries:
        found.add("scoring.queries", f"must be a list of at least one query, not {shown(queries)}")
        return {}
    shapes: dict[str, QueryShape] = {}
    seen: set[str] = set()
    for number, query in enumerate(queries):
        where = f"scoring.queries.{number}"
        if not isinstance(query, Mapping):
            found.add(where, f"must be an object, not {shown(query)}")
            continue
        id_ = found.text(query, "id", where)
        if id_ is not None:
            where = f"query {id_}"
            if len(id_) > MAX_ID_CHARS:
                found.add(where, f"has an id of {len(id_)} characters; at most {MAX_ID_CHARS} may be")
            if id_ in seen:
                found.add(where, "repeats the id of an earlier query")
            seen.add(id_)
        shape = _check_query(found, query, where, scoring.get("case_insensitive") is True)
        if id_ is not None:
            shapes.setdefault(id_, shape)
    return shapes


def _check_query(found: Checks, query: Mapping[str, Any], where: str, case_insensitive: bool) -> QueryShape:
    found.known(query, _QUERY, where)
    found.boolean(query, "empty_floor", where)
    if query.get("group") is not None:
        found.add(f"{where}.group", "must be left out: a pack's queries run in a group of their own")
    for name in ("max_tokens", "top_k", "calibration", "generate"):
        if query.get(name) not in (None, False):
            found.add(f"{where}.{name}", "is for extraction slots; a pack's queries are scored")
    options = _check_options(found, query, where, case_insensitive)
    text = found.text(query, "template", where)
    if text is None:
        return QueryShape(options, None)
    try:
        template = Template.parse(text, f"{where}.template")
    except Rejected as error:
        found.problems.append(error.message)
        return QueryShape(options, None)
    if template.slot != "scored":
        found.add(f"{where}.template", "must end with {?}: a pack's queries are scored")
    for name in template.placeholders:
        if name != "F":
            found.add(f"{where}.template", f"has the placeholder {{{name}}}; a pack's queries have none but {{F}}")
    values = _check_values(found, query, where)
    if "F" in template.placeholders and values is None:
        found.add(f"{where}.combinations", "is missing: the template has the placeholder {F}")
    if "F" not in template.placeholders and values:
        found.add(f"{where}.combinations", "gives values to {F}, which the template lacks")
    return QueryShape(options, (values or ()) if "F" in template.placeholders else None)


def _check_options(found: Checks, query: Mapping[str, Any], where: str, case_insensitive: bool) -> int:
    """Note problems of the options; how many there are."""
    options = found.texts(query, "options", where)
    if options is None:
        given = query.get("options")
        return len(given) if isinstance(given, list) else 0
    if not 2 <= len(options) <= 1000:
        found.add(f"{where}.options", f"has {len(options)}; 2 to 1000 may be")
    first: dict[str, int] = {}
    for number, option in enumerate(options):
        same = option.strip().casefold() if case_insensitive else option
        if first.setdefault(same, number) != number:
            found.add(f"{where}.options.{number}", f"{shown(option)} repeats option {first[same]}")
    return len(options)


def _check_values(found: Checks, query: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    """Note problems of the combinations; the values of F, None where there are no combinations."""
    combinations, named = query.get("combinations"), query.get("values")
    if combinations is None and named is None:
        return None
    if combinations == "all":
        listed = named.get("F") if isinstance(named, Mapping) and set(named) == {"F"} else None
        if not isinstance(listed, list) or not listed:
            found.add(f"{where}.values", f'must be {{"F": […]}} where combinations is "all", not {shown(named)}')
            return ()
        place = f"{where}.values.F"
    else:
        if named is not None:
            found.add(f"{where}.values", 'goes with "combinations": "all" and with nothing else')
        if not isinstance(combinations, list) or not all(
            isinstance(each, Mapping) and {*each} == {"F"} for each in combinations
        ):
            found.add(f"{where}.combinations", 'must be "all" or a list of objects like {"F": "…"}')
            return ()
        listed = [each["F"] for each in combinations]
        place = f"{where}.combinations"
    values: list[str] = []
    for number, value in enumerate(listed):
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS:
            found.add(f"{place}.{number}", f"must be a text of at most {MAX_VALUE_CHARS} characters, not {shown(value)}")
        elif value in values:
            found.add(f"{place}.{number}", f"{shown(value)} is there twice")
        else:
            values.append(value)
    if len(listed) > MAX_PRODUCT:
        found.add(place, f"has {len(listed)} values; at most {MAX_PRODUCT} may be")
    return tuple(values)
