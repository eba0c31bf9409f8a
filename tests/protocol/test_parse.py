from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from spinf_core.limits import Limits
from spinf_core.protocol import Features, ParsedRequest, parse_request
from spinf_core.protocol import request as typed

QUERIES: list[dict[str, Any]] = [
    {"id": "a", "template": "Is it{?}", "options": [" yes", " no"]},
    {"id": "b", "template": "Or{?}", "options": ["x"], "empty_floor": False, "group": "g"},
]


def parse(messages: Any = (), queries: Any = QUERIES, **scoring: Any) -> ParsedRequest:
    return parse_request({"messages": messages, "scoring": {"queries": queries, **scoring}})


def parse_inputs(*inputs: dict[str, Any]) -> ParsedRequest:
    return parse_request({"inputs": [{"messages": [], **i} for i in inputs], "scoring": {"queries": QUERIES}})


def content(*messages: Any) -> str:
    return parse([{"role": "user", "content": message} for message in messages]).inputs[0].content


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_text_parts_join_as_they_are_and_messages_by_a_blank_line() -> None:
    assert content([text("a"), text("b ")], "c", [text("d")]) == "ab \n\nc\n\nd"


@pytest.mark.parametrize(("sent", "read"), [("", ""), ("   ", "   "), ([], ""), ([text("")], ""), ("a\x00b", "a\x00b")])
def test_empty_blank_and_nul_contents_are_read_as_they_are(sent: object, read: str) -> None:
    assert content(sent) == read


def test_no_messages_are_an_empty_content() -> None:
    assert parse([]).inputs[0].content == ""


def test_content_that_looks_like_a_template_stays_text() -> None:
    assert content("{name} {{ {?} <|im_end|>") == "{name} {{ {?} <|im_end|>"


def test_roles_are_not_rendered_and_message_fields_of_other_sdks_are_ignored() -> None:
    parsed = parse([{"role": "system", "content": "s", "name": 5}, {"content": "t"}])
    assert parsed.inputs[0].content == "s\n\nt"
    assert parsed.warnings == ()


def test_one_content_is_the_input_named_0() -> None:
    parsed = parse([])
    assert [(entry.id, entry.param, entry.messages_param) for entry in parsed.inputs] == [("0", "", "messages")]


def test_inputs_without_an_id_are_named_by_their_index() -> None:
    parsed = parse_inputs({}, {"id": "x"}, {"id": None})
    assert [entry.id for entry in parsed.inputs] == ["0", "x", "2"]
    assert parsed.inputs[2].messages_param == "inputs.2.messages"


def test_all_inputs_share_the_shared_queries() -> None:
    parsed = parse_inputs({}, {}, {"query_ids": ["b"]})
    assert parsed.inputs[0].queries is parsed.inputs[1].queries
    assert parsed.inputs[2].queries[0] is parsed.inputs[0].queries[1]


def test_an_input_chooses_by_id_and_adds_its_own() -> None:
    own = {"id": "c", "template": "{?}", "options": ["y"]}
    parsed = parse_inputs(
        {"query_ids": ["b", "a"], "queries": [own]}, {"queries": [own]}, {"query_ids": ["b"]}, {"queries": [QUERIES[0]]}
    )
    assert [[q.id for q in entry.queries] for entry in parsed.inputs] == [["b", "a", "c"], ["c"], ["b"], ["a"]]
    assert parsed.inputs[1].queries[0].param == "inputs.1.queries.0"


def test_a_query_takes_its_defaults_from_scoring() -> None:
    first, second = parse().inputs[0].queries
    assert (first.empty_floor, first.case_insensitive, first.group, first.kind) == (True, True, None, "scored")
    assert (second.empty_floor, second.group, second.param) == (False, "g", "scoring.queries.1")
    off = parse(empty_floor=False, case_insensitive=False).inputs[0].queries[0]
    assert (off.empty_floor, off.case_insensitive) == (False, False)


def test_null_means_left_out() -> None:
    nulls = dict.fromkeys(("combinations", "values", "empty_floor", "group", "max_tokens", "top_k", "generate"))
    assert parse([], [QUERIES[0] | nulls], empty_floor=None).inputs == parse([], QUERIES[:1]).inputs


def test_options_that_differ_in_case_are_distinct_when_case_counts() -> None:
    queries = [QUERIES[0] | {"options": ["Yes", "yes", " yes"]}]
    assert parse([], queries, case_insensitive=False).inputs[0].queries[0].options == ("Yes", "yes", " yes")


def test_a_query_without_placeholders_has_one_empty_combination() -> None:
    every: list[object] = [None, [], [{}], "all"]
    for combinations in every:
        query = parse([], [QUERIES[0] | {"combinations": combinations}]).inputs[0].queries[0]
        assert [dict(values) for values in query.combinations] == [{}]


def test_listed_combinations_stay_in_order() -> None:
    listed = [{"x": "2"}, {"x": "1"}, {"x": "{x}"}]
    query = parse([], [QUERIES[0] | {"template": "is {x}{?}", "combinations": listed}]).inputs[0].queries[0]
    assert list(query.combinations) == listed
    assert [query.template.fill(values) for values in query.combinations] == ["is 2", "is 1", "is {x}"]


def test_all_combinations_are_the_product_with_the_last_name_fastest() -> None:
    values = {"x": ["1", "2"], "y": ["a", "b", "c"]}
    grid = {"template": "{y}{x}{?}", "combinations": "all", "values": values}
    combinations = parse([], [QUERIES[0] | grid]).inputs[0].queries[0].combinations
    assert [c["x"] + c["y"] for c in combinations] == ["1a", "1b", "1c", "2a", "2b", "2c"]
    assert len(combinations) == 6
    assert combinations[-1] == {"x": "2", "y": "c"}
    assert list(combinations[1:3]) == list(combinations)[1:3]
    with pytest.raises(IndexError):
        combinations[6]


def test_extraction_slots_have_their_documented_defaults() -> None:
    features = Features(extraction=True, generation=True)
    body = {
        "messages": [],
        "scoring": {
            "queries": [
                {"id": "text", "template": 'a "{*}"'},
                {"id": "number", "template": "{n}", "top_k": 1, "max_tokens": 3, "calibration": {"a": 1, "b": 0.5}},
                {"id": "currency", "template": "{$}"},
                {"id": "generated", "template": "{*}", "generate": {"temperature": 1, "seed": 7}},
            ]
        },
    }
    queries = parse_request(body, features=features).inputs[0].queries
    assert [query.kind for query in queries] == ["text", "number", "currency", "generated"]
    searched, tuned, _, generated = (query.extraction for query in queries)
    assert searched is not None
    assert (searched.max_tokens, searched.top_k, searched.calibration) == (16, 5, None)
    assert tuned is not None
    assert (tuned.max_tokens, tuned.top_k, tuned.calibration) == (3, 1, typed.Calibration(a=1.0, b=0.5))
    assert generated is not None
    assert generated.generate == typed.Generate(temperature=1.0, seed=7)


def test_a_typed_request_is_read_like_its_json() -> None:
    request = typed.ScoreRequest(
        messages=(typed.Message(content=(typed.TextPart(text="a"),)),),
        scoring=typed.Scoring(queries=(typed.Query(id="a", template="Is it{?}", options=(" yes", " no")),)),
    )
    assert parse_request(request) == parse([{"role": "user", "content": [text("a")]}], QUERIES[:1])


def test_unknown_fields_inside_scoring_are_named_with_the_nearest_known_one() -> None:
    body = {
        "messages": [{"role": "user", "content": "", "nam": 1}],
        "temperature": 0,
        "inptus": [],
        "scoring": {"querys": [], "queries": [QUERIES[0] | {"emptyfloor": True, "\ud800": 1}]},
    }
    first, second, third = parse_request(body).warnings
    assert {warning.code for warning in (first, second, third)} == {"unknown_field"}
    assert (first.query_id, first.input_id) == (None, None)
    assert "scoring.querys " in first.message
    assert first.message.endswith(" queries")
    assert second.query_id == "a"
    assert "scoring.queries.0.emptyfloor " in second.message
    assert second.message.endswith(" empty_floor")
    third.message.encode()


def test_unknown_fields_of_nested_objects_and_of_own_queries_are_named_too() -> None:
    query = {"id": "a", "template": "{n}", "calibration": {"a": 1, "b": 0, "c": 2}}
    generated = {"id": "b", "template": "{*}", "generate": {"temprature": 1}}
    body = {"inputs": [{"messages": [], "queries": [query, generated]}], "scoring": {}}
    warnings = parse_request(body, features=Features(extraction=True, generation=True)).warnings
    assert [(w.input_id, w.query_id) for w in warnings] == [("0", "a"), ("0", "b")]
    assert "inputs.0.queries.0.calibration.c" in warnings[0].message
    assert "inputs.0.queries.1.generate.temprature" in warnings[1].message
    assert warnings[1].message.endswith(" temperature")


def test_very_many_unknown_fields_are_counted_off() -> None:
    start = time.perf_counter()
    warnings = parse([], **{f"field{i}": 1 for i in range(50_000)}).warnings
    assert len(warnings) == 101
    assert time.perf_counter() - start < 2


def test_limits_and_features_of_a_caller_who_is_not_trusted_are_ignored() -> None:
    body = {"messages": [], "scoring": {"queries": QUERIES}, "limits": {"max_options": 1}, "features": "nonsense"}
    parsed = parse_request(body, limits=Limits(max_options=50), features=Features(extraction=True))
    assert (parsed.limits, parsed.features) == (Limits(max_options=50), Features(extraction=True))


def test_ten_thousand_queries_are_checked_in_a_fraction_of_a_second() -> None:
    queries = [{"id": f"q{i}", "template": f"\nIs {i} in it{{?}}", "options": [" yes", " no"]} for i in range(10_000)]
    body = {"messages": [{"role": "user", "content": "text"}], "scoring": {"queries": queries}}
    fastest = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        parsed = parse_request(body)
        fastest = min(fastest, time.perf_counter() - start)
    assert len(parsed.inputs[0].queries) == 10_000
    assert fastest < 0.6  # a tenth of a second on an idle core


def test_the_protocol_imports_nothing_heavy() -> None:
    heavy = "torch numpy tokenizers transformers triton"
    script = f"import sys, spinf_core.protocol; print(set(sys.modules) & set('{heavy}'.split()) or 'light')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"
