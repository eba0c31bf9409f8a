"""Warnings about fields of `scoring` that this server does not know: a typo must be visible."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping

import attrs

from spinf_core.protocol.request import Calibration, Generate, Query, Scoring
from spinf_core.protocol.response import Warning
from spinf_core.protocol.text import segment
from spinf_core.strict import nearest

MOST = 100
"""How many are named; looking for the nearest name takes time, and a body can hold very many fields."""

_FIELDS: dict[type, KeysView[str]] = {of: attrs.fields_dict(of).keys() for of in (Scoring, Query, Calibration, Generate)}


def unknown_fields(body: Mapping[str, object]) -> tuple[Warning, ...]:
    """One `unknown_field` warning per unknown field of `scoring` or of an input's own query, at most `MOST` of them.

    Args:
        body: a body that has been structured without complaint. Fields of packs are not looked at: an unknown one is
            refused.
    """
    warnings = []
    for count, warning in enumerate(_warnings(body)):
        if count == MOST:
            warnings.append(Warning("unknown_field", f"more unknown fields follow; the first {MOST} are named"))
            break
        warnings.append(warning)
    return tuple(warnings)


def _warnings(body: Mapping[str, object]) -> Iterator[Warning]:
    scoring = body["scoring"]
    yield from _in(scoring, Scoring, "scoring")
    assert isinstance(scoring, Mapping)
    yield from _in_queries(scoring.get("queries"), "scoring.queries", None)
    inputs = body.get("inputs")
    for index, entry in enumerate(inputs if isinstance(inputs, (list, tuple)) else ()):
        yield from _in_queries(entry.get("queries"), f"inputs.{index}.queries", entry.get("id") or str(index))


def _in_queries(queries: object, path: str, input_id: str | None) -> Iterator[Warning]:
    for index, query in enumerate(queries if isinstance(queries, (list, tuple)) else ()):
        where = (query["id"], input_id)
        yield from _in(query, Query, f"{path}.{index}", *where)
        if "calibration" in query:
            yield from _in(query["calibration"], Calibration, f"{path}.{index}.calibration", *where)
        if "generate" in query:
            yield from _in(query["generate"], Generate, f"{path}.{index}.generate", *where)


def _in(value: object, of: type, path: str, query_id: str | None = None, input_id: str | None = None) -> Iterator[Warning]:
    known = _FIELDS[of]
    if not isinstance(value, Mapping) or value.keys() <= known:
        return
    for name in value:
        if name not in known:
            near = nearest(str(name)[:32], known, cutoff=0)
            message = f"{path}.{segment(name)} is not a field that this server knows; the nearest one is {near}"
            yield Warning("unknown_field", message, input_id=input_id, query_id=query_id)
