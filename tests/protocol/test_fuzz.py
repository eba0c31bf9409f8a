"""Whatever JSON comes in, it is parsed or refused, and the refusal can be sent."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_core.errors import Rejected
from spinf_core.protocol import Features, ParsedRequest, parse_request

TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(["\ud800", "{?}", "{x}{?}", "{*}", "all", "text", "a"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly an object with these fields, each of which may be missing or be anything."""
    return st.one_of(
        st.fixed_dictionaries({}, optional=fields),
        st.fixed_dictionaries({}, optional=dict.fromkeys(fields, JSON)),
        JSON,
    )


def several(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=3)


PART = shaped(type=st.sampled_from(["text", "image_url", "input_audio", "video"]), text=TEXT, image_url=shaped(url=TEXT))
MESSAGE = shaped(role=TEXT, content=TEXT | several(PART))
QUERY = shaped(
    id=TEXT,
    template=st.sampled_from(["{?}", "{x}{?}", "a{*}b", "{n}"]) | TEXT,
    options=several(TEXT),
    combinations=st.just("all") | several(st.dictionaries(st.just("x"), TEXT)),
    values=st.dictionaries(st.just("x"), several(TEXT)),
    generate=st.booleans() | shaped(temperature=st.floats(), n=st.integers()),
    calibration=shaped(a=st.floats(), b=st.floats()),
)
BODY = shaped(
    messages=several(MESSAGE),
    inputs=several(shaped(id=TEXT, messages=several(MESSAGE), query_ids=several(TEXT), queries=several(QUERY))),
    scoring=shaped(queries=several(QUERY), packs=several(JSON), empty_floor=st.booleans()),
    limits=JSON,
    features=JSON,
)
VALID = {"messages": [], "scoring": {"queries": [{"id": "a", "template": "{?}", "options": ["x"]}]}}


def check(body: object) -> None:
    features = Features(extraction=True, generation=True, media=frozenset({"image"}))
    try:
        parsed = parse_request(body, features=features, trusted=True)
    except Rejected as error:
        json.dumps(error.envelope(), ensure_ascii=False, allow_nan=False).encode()
    else:
        assert isinstance(parsed, ParsedRequest)
        for warning in parsed.warnings:
            json.dumps(warning.to_dict(), ensure_ascii=False).encode()


@given(JSON)
def test_any_json_is_parsed_or_refused(body: object) -> None:
    check(body)


@settings(max_examples=300)
@given(BODY)
def test_anything_shaped_like_a_request_is_parsed_or_refused(body: object) -> None:
    check(body)


@settings(max_examples=200)
@given(st.sampled_from(["messages", "inputs", "model", "endpoint", "limits", "features"]), JSON)
def test_any_value_of_a_top_level_field_is_parsed_or_refused(field: str, value: object) -> None:
    check(VALID | {field: value})


@settings(max_examples=300)
@given(QUERY)
def test_any_query_is_parsed_or_refused(query: object) -> None:
    check(VALID | {"scoring": {"queries": [query]}})
