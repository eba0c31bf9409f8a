from __future__ import annotations

import copy
import json
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_core.protocol.response import (
    Answer,
    CombinationResult,
    ExtractionQueryResult,
    ExtractionResult,
    InputResult,
    OptionResult,
    QueryResult,
    ScoreResponse,
    Warning,
    request_id,
)
from spinf_core.protocol.usage import (
    ContentUsage,
    ExtractionUsage,
    GenerationUsage,
    PacksUsage,
    PromptTokensDetails,
    ScoringUsage,
    Timing,
    Usage,
    number_text,
    rounded,
)


def usage(**optional: Any) -> Usage:
    return Usage(
        prompt_tokens=12,
        completion_tokens=0,
        prompt_tokens_details=PromptTokensDetails(content_tokens=5, text_tokens=5, query_tokens=4, floor_tokens=3),
        inputs=1,
        content=ContentUsage(tokens=5, text_tokens=5),
        scoring=ScoringUsage(queries=1, combinations=1, options=2, prompts=1, floor_prompts=1, query_tokens=4, floor_tokens=3),
        processed_tokens=9,
        **optional,
    )


def made(*results: InputResult, **fields: Any) -> ScoreResponse:
    members: dict[str, Any] = {
        "id": "scr_0",
        "created": 1_790_000_000,
        "model": "m",
        "system_fingerprint": "fp_0",
        "results": results,
        "usage": usage(),
        "timing": Timing(wall_ms=1.5, queue_ms=0, compile_ms=0.25, score_ms=1, gpu_busy_ms=0),
    }
    return ScoreResponse(**members | fields)


def response(*results: InputResult, **fields: Any) -> dict[str, Any]:
    return made(*results, **fields).to_dict()


def scored(option: OptionResult, residual: float = 0.0, floor_residual: float | None = None) -> InputResult:
    return InputResult("0", (QueryResult("q", (combination({}, [option], residual, floor_residual),)),))


def combination(
    values: dict[str, str], options: list[OptionResult], residual: float, floor_residual: float | None
) -> CombinationResult:
    """Of options that all have a floor, or none."""
    return CombinationResult(
        values=values,
        texts=tuple(option.text for option in options),
        logprob=tuple(option.logprob for option in options),
        p=tuple(option.p for option in options),
        residual=residual,
        floor_p=tuple(option.floor_p for option in options if option.floor_p is not None) or None,
        floor_residual=floor_residual,
    )


def test_the_response_has_exactly_the_documented_members() -> None:
    result = scored(OptionResult(" yes", -0.9, 0.72, 0.6), 0.44, 0.9)
    assert response(result) == {
        "id": "scr_0",
        "object": "score",
        "created": 1790000000,
        "model": "m",
        "system_fingerprint": "fp_0",
        "results": [
            {
                "input_id": "0",
                "queries": [
                    {
                        "id": "q",
                        "combinations": [
                            {
                                "values": {},
                                "options": [{"text": " yes", "logprob": -0.9, "p": 0.72, "floor_p": 0.6}],
                                "residual": 0.44,
                                "floor_residual": 0.9,
                            }
                        ],
                    }
                ],
            }
        ],
        "warnings": [],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 0,
            "total_tokens": 12,
            "prompt_tokens_details": {"content_tokens": 5, "text_tokens": 5, "query_tokens": 4, "floor_tokens": 3},
            "inputs": 1,
            "content": {
                "tokens": 5,
                "text_tokens": 5,
                "images": 0,
                "image_tokens": 0,
                "video_frames": 0,
                "video_tokens": 0,
                "audio_seconds": 0,
                "audio_tokens": 0,
            },
            "scoring": {
                "queries": 1,
                "combinations": 1,
                "options": 2,
                "prompts": 1,
                "floor_prompts": 1,
                "query_tokens": 4,
                "floor_tokens": 3,
            },
            "processed_tokens": 9,
        },
        "timing": {"wall_ms": 1.5, "queue_ms": 0, "compile_ms": 0.25, "score_ms": 1, "gpu_busy_ms": 0},
    }


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda number, places: round(number, places), st.floats(-40, 2), st.integers(0, 8)),
    st.sampled_from([0.0, -0.0, 1e-4, 0.00009999996, -0.0000005, 999999999.9999999, 1e9, -1e9, 1e16, 5e-324, 0.5, 100.0]),
)


@given(NUMBERS)
def test_a_number_is_written_as_json_writes_it_rounded(number: float) -> None:
    assert number_text(number) == json.dumps(rounded(number))


TIES = st.builds(
    lambda half, towards: math.nextafter((half + 0.5) / 1e6, towards),
    st.integers(-(10**10), 10**10),
    st.sampled_from([-math.inf, 0.0, math.inf]),
)


@given(NUMBERS | TIES)
def test_a_number_is_rounded_as_python_rounds_it(number: float) -> None:
    assert repr(rounded(number)) == repr(round(number, 6) + 0.0)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
FLOORLESS = st.lists(st.builds(OptionResult, TEXTS, NUMBERS, NUMBERS), min_size=1, max_size=2)
WITH_FLOORS = st.lists(st.builds(OptionResult, TEXTS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=2)
COMBINATIONS = st.builds(
    combination, st.dictionaries(TEXTS, TEXTS, max_size=2), FLOORLESS | WITH_FLOORS, NUMBERS, st.none() | NUMBERS
)
QUERIES = st.builds(QueryResult, TEXTS, st.lists(COMBINATIONS, max_size=2).map(tuple))
PACKS = st.none() | st.just(({"id": "é", "decision": {"p": 0.5}},))


@given(st.builds(InputResult, TEXTS, st.lists(QUERIES, max_size=2).map(tuple), PACKS))
def test_a_result_is_written_as_json_writes_it(result: InputResult) -> None:
    assert result.json == json.dumps(result.to_dict(), ensure_ascii=False)


@given(FLOORLESS | WITH_FLOORS)
def test_a_combination_has_its_options(options: list[OptionResult]) -> None:
    found = combination({"A": "b"}, options, 0.25, None)
    assert found.options == tuple(options)
    assert found.to_dict()["options"] == [option.to_dict() for option in options]
    assert (
        repr(found) == f"CombinationResult(values={{'A': 'b'}}, options={tuple(options)!r}, residual=0.25, floor_residual=None)"
    )


@pytest.mark.parametrize("same", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made)), attrs.evolve])
def test_nothing_of_a_combination_tells_whether_its_options_were_looked_at(
    same: Callable[[CombinationResult], CombinationResult],
) -> None:
    looked_at, fresh = (combination({"A": "b"}, [OptionResult(" yes", -1.0, 0.5, 0.25)], 0.5, 0.75) for _ in range(2))
    options = looked_at.options
    assert looked_at.options is options
    for made in (looked_at, fresh):
        again = same(made)
        assert again == made == fresh
        assert attrs.asdict(again) == attrs.asdict(fresh)
        assert set(attrs.asdict(again)) == {"values", "texts", "logprob", "p", "residual", "floor_p", "floor_residual"}
        assert again.options == options


def test_the_body_of_a_response_is_its_json() -> None:
    answer = ExtractionResult(values={"A": "é"}, answers=(Answer(text="é", p=0.5),), mass=0.75)
    extracted = InputResult("b", (ExtractionQueryResult("x", "text", (answer,)),))
    whole = made(scored(OptionResult('"é\u2028', -3e-7, 1.0, 0.5)), extracted, endpoint="e")
    assert whole.to_json() == json.dumps(whole.to_dict(), ensure_ascii=False).encode()
    extra = {"choices": [], "model": "other"}
    assert whole.to_json(extra) == json.dumps(whole.to_dict() | extra, ensure_ascii=False).encode()


def test_numbers_are_rounded_to_six_decimals() -> None:
    option = response(scored(OptionResult("a", -1.23456789, 0.1234567, 2e-7)))["results"][0]["queries"][0]["combinations"][0][
        "options"
    ][0]
    assert option == {"text": "a", "logprob": -1.234568, "p": 0.123457, "floor_p": 0.0}


def test_a_logprob_that_rounds_to_zero_has_no_sign() -> None:
    body = json.dumps(response(scored(OptionResult("a", -1e-9, 1.0))))
    assert '"logprob": 0.0' in body


def test_floors_that_were_not_read_are_null() -> None:
    combination = response(scored(OptionResult("a", -1.0, 1.0)))["results"][0]["queries"][0]["combinations"][0]
    assert combination["floor_residual"] is None
    assert combination["options"][0]["floor_p"] is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_never_answered(bad: float) -> None:
    for result in (
        scored(OptionResult("a", bad, 1.0)),
        scored(OptionResult("a", 0.0, bad)),
        scored(OptionResult("a", 0.0, 1.0, bad)),
        scored(OptionResult("a", 0.0, 1.0), bad),
        scored(OptionResult("a", 0.0, 1.0), 0.0, bad),
    ):
        with pytest.raises(ValueError, match="cannot be answered"):
            response(result)
        with pytest.raises(ValueError, match="cannot be answered"):
            made(result).to_json()


def test_optional_members_appear_when_they_are_there() -> None:
    parts = usage(
        extraction=ExtractionUsage(slots=1, text=1, number=0, currency=0, answers=2, decode_tokens=8),
        generation=GenerationUsage(slots=1, sequences=2, max_tokens=100, generated_tokens=30),
        packs=PacksUsage(count=1, query_tokens=7),
    )
    timing = Timing(wall_ms=1, queue_ms=0, compile_ms=0, score_ms=1, gpu_busy_ms=0, decode_ms=2)
    body = response(InputResult("a", (), ({"id": "p"},)), endpoint="e", usage=parts, timing=timing)
    assert (body["endpoint"], body["timing"]["decode_ms"]) == ("e", 2)
    assert body["results"] == [{"input_id": "a", "queries": [], "packs": [{"id": "p"}]}]
    assert body["usage"]["extraction"]["answers"] == 2
    assert body["usage"]["generation"]["sequences"] == 2
    assert body["usage"]["packs"] == {"count": 1, "query_tokens": 7}


def test_answers_carry_what_their_kind_has() -> None:
    number = ExtractionResult(
        values={"x": "1"},
        answers=(
            Answer(text="$3", p=0.81, p_calibrated=0.9, value=3.0, currency="$"),
            Answer(text="4", p=0.1, value=4),
        ),
        mass=0.91,
        p_negative=0.0,
    )
    generated = ExtractionResult(values={}, answers=(Answer(text="So", finish="stop"),))
    queries = (
        ExtractionQueryResult("n", "currency", (number,)),
        ExtractionQueryResult("g", "generated", (generated,)),
    )
    assert response(InputResult("0", queries))["results"][0]["queries"] == [
        {
            "id": "n",
            "kind": "currency",
            "combinations": [
                {
                    "values": {"x": "1"},
                    "answers": [
                        {"text": "$3", "p": 0.81, "p_calibrated": 0.9, "value": 3.0, "currency": "$"},
                        {"text": "4", "p": 0.1, "value": 4.0},
                    ],
                    "mass": 0.91,
                    "p_negative": 0.0,
                }
            ],
        },
        {
            "id": "g",
            "kind": "generated",
            "combinations": [{"values": {}, "answers": [{"text": "So", "finish": "stop"}]}],
        },
    ]


def test_warnings_name_their_input_and_query_or_null() -> None:
    warning = Warning("low_option_mass", "text", input_id="0", query_id="q")
    assert response(warnings=(warning, Warning("unknown_field", "text")))["warnings"] == [
        {"code": "low_option_mass", "input_id": "0", "query_id": "q", "message": "text"},
        {"code": "unknown_field", "input_id": None, "query_id": None, "message": "text"},
    ]


def test_results_keep_the_order_of_the_inputs() -> None:
    results = response(*(InputResult(name, ()) for name in "cab"))["results"]
    assert [result["input_id"] for result in results] == ["c", "a", "b"]


def test_a_request_id_is_a_ulid() -> None:
    identifier = request_id(1469918176385)  # the millisecond of the specification's example, 01ARYZ6S41
    assert re.fullmatch(r"scr_01ARYZ6S41[0-9A-HJKMNP-TV-Z]{16}", identifier)


def test_request_ids_sort_by_time_and_differ() -> None:
    identifiers = [request_id(milliseconds) for milliseconds in (0, 1, 31, 32, 10**12, 2**48 - 1)]
    assert identifiers == sorted(identifiers)
    assert len({request_id(5) for _ in range(1000)}) == 1000
    assert {len(identifier) for identifier in identifiers} == {30}
