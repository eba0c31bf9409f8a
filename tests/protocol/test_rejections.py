"""Every code that is raised before compilation, with the exact field it names."""

from __future__ import annotations

from typing import Any

import pytest

from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import Features, parse_request

MESSAGES = [{"role": "user", "content": "text"}]
QUERY = {"id": "a", "template": "Is it{?}", "options": [" yes", " no"]}
EVERYTHING = Features(
    extraction=True,
    generation=True,
    media=frozenset({"image", "audio", "video"}),
    packs=frozenset({"spinf/moderation"}),
)


def request(**scoring: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "scoring": {"queries": [QUERY], **scoring}}


def query(**fields: Any) -> dict[str, Any]:
    return request(queries=[{name: value for name, value in (QUERY | fields).items() if value != "absent"}])


def extraction(template: str = "It is {*}", **fields: Any) -> dict[str, Any]:
    return query(template=template, options="absent", **fields)


def content(*parts: Any) -> dict[str, Any]:
    return request() | {"messages": [{"role": "user", "content": list(parts)}]}


def inputs(*entries: Any, **scoring: Any) -> dict[str, Any]:
    filled = [{"messages": MESSAGES, **entry} if isinstance(entry, dict) else entry for entry in entries]
    return {"inputs": filled, "scoring": {"queries": [QUERY], **scoring}}


def pack(**fields: Any) -> dict[str, Any]:
    return request(packs=[{"id": "spinf/moderation", **fields}])


def rejection(body: object, **options: Any) -> tuple[str, str | None]:
    with pytest.raises(Rejected) as caught:
        parse_request(body, **options)
    return caught.value.code, caught.value.param


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
VIDEO = {"type": "video", "video": {"frames": [{"t": 0, "image_url": {"url": "data:,"}}]}}
Q = "scoring.queries.0"

Fault = tuple[object, str, str | None]
"""A body, the code it is refused with, the field that is named."""

BODY: list[Fault] = [
    (None, "invalid_field", None),
    ([], "invalid_field", None),
    ("text", "invalid_field", None),
    ({}, "invalid_field", "scoring"),
    ({"messages": MESSAGES}, "invalid_field", "scoring"),
    ({"messages": MESSAGES, "scoring": None}, "invalid_field", "scoring"),
    ({"messages": MESSAGES, "scoring": []}, "invalid_field", "scoring"),
    ({"scoring": {"queries": [QUERY]}}, "invalid_field", "messages"),
    (request() | {"inputs": []}, "invalid_field", "inputs"),
    (inputs(), "invalid_field", "inputs"),
    (request() | {"model": 5}, "invalid_field", "model"),
    (request() | {"endpoint": "e" * 129}, "invalid_field", "endpoint"),
    (request() | {"endpoint": True}, "invalid_field", "endpoint"),
    (request() | {"messages": "text"}, "invalid_field", "messages"),
    (request() | {"messages": {}}, "invalid_field", "messages"),
]

CONTENT: list[Fault] = [
    (request() | {"messages": ["text"]}, "invalid_field", "messages.0"),
    (request() | {"messages": [{"role": "user"}]}, "invalid_field", "messages.0.content"),
    (request() | {"messages": [{"content": None}]}, "invalid_field", "messages.0.content"),
    (request() | {"messages": [{"content": 5}]}, "invalid_field", "messages.0.content"),
    (request() | {"messages": [{"content": {}}]}, "invalid_field", "messages.0.content"),
    (request() | {"messages": [{"role": 1, "content": ""}]}, "invalid_field", "messages.0.role"),
    (request() | {"messages": [*MESSAGES, {"content": "\ud83d"}]}, "invalid_field", "messages.1.content"),
    (content("text"), "invalid_field", "messages.0.content.0"),
    (content({"text": "x"}), "invalid_field", "messages.0.content.0.type"),
    (content({"type": 5}), "invalid_field", "messages.0.content.0.type"),
    (content({"type": ["text"]}), "invalid_field", "messages.0.content.0.type"),
    (content({"type": "file"}), "unsupported_content", "messages.0.content.0"),
    (content({"type": "text"}), "unsupported_content", "messages.0.content.0"),
    (content({"type": "text", "text": None}), "unsupported_content", "messages.0.content.0"),
    (content({"type": "text", "text": 5}), "invalid_field", "messages.0.content.0.text"),
    (content({"type": "text", "text": "\udc00"}), "invalid_field", "messages.0.content.0.text"),
    (content({"type": "image_url"}), "invalid_field", "messages.0.content.0.image_url"),
    (content({"type": "image_url", "image_url": "u"}), "invalid_field", "messages.0.content.0.image_url"),
    (content({"type": "image_url", "image_url": {}}), "invalid_field", "messages.0.content.0.image_url.url"),
    (
        content({"type": "image_url", "image_url": {"url": "", "detail": "full"}}),
        "invalid_field",
        "messages.0.content.0.image_url.detail",
    ),
    (
        content({"type": "input_audio", "input_audio": {"data": "", "format": "aiff"}}),
        "invalid_field",
        "messages.0.content.0.input_audio.format",
    ),
    (
        content({"type": "video", "video": {"frames": [{"t": -1, "image_url": {"url": ""}}]}}),
        "invalid_field",
        "messages.0.content.0.video.frames.0.t",
    ),
    (content({"type": "text", "text": "a"}, IMAGE), "media_not_supported", "messages.0.content.1"),
    (content(AUDIO), "media_not_supported", "messages.0.content.0"),
    (content(VIDEO), "media_not_supported", "messages.0.content.0"),
    (
        inputs({}, {"messages": [{"content": [{"type": "text", "text": ""}] * 3 + [IMAGE]}]}),
        "media_not_supported",
        "inputs.1.messages.0.content.3",
    ),
]

QUERIES: list[Fault] = [
    (query(id="absent"), "invalid_field", f"{Q}.id"),
    (query(id=""), "invalid_field", f"{Q}.id"),
    (query(id="i" * 129), "invalid_field", f"{Q}.id"),
    (query(id=7), "invalid_field", f"{Q}.id"),
    (query(template="absent"), "invalid_field", f"{Q}.template"),
    (query(template=None), "invalid_field", f"{Q}.template"),
    (query(template="no slot"), "invalid_template", f"{Q}.template"),
    (query(template="\ud800{?}"), "invalid_field", f"{Q}.template"),
    (request(queries={}), "invalid_field", "scoring.queries"),
    (request(queries="q"), "invalid_field", "scoring.queries"),
    (request(queries=[5]), "invalid_field", Q),
    (request(queries=[QUERY, QUERY]), "duplicate_id", "scoring.queries.1.id"),
    (request(queries=[]), "empty_queries", "scoring.queries"),
    (request(queries=None), "empty_queries", "scoring.queries"),
    (request(empty_floor=0), "invalid_field", "scoring.empty_floor"),
    (request(empty_floor="off"), "invalid_field", "scoring.empty_floor"),
    (request(case_insensitive="false"), "invalid_field", "scoring.case_insensitive"),
    (query(empty_floor=1), "invalid_field", f"{Q}.empty_floor"),
    (query(group=3), "invalid_field", f"{Q}.group"),
]

OPTIONS: list[Fault] = [
    (query(options="absent"), "invalid_field", f"{Q}.options"),
    (query(options=None), "invalid_field", f"{Q}.options"),
    (query(options=[]), "too_many_options", f"{Q}.options"),
    (query(options=[str(i) for i in range(1001)]), "too_many_options", f"{Q}.options"),
    (query(options="ab"), "invalid_field", f"{Q}.options"),
    (query(options=["a", 5]), "invalid_field", f"{Q}.options.1"),
    (query(options=["a", None]), "invalid_field", f"{Q}.options.1"),
    (query(options=["a", ""]), "invalid_field", f"{Q}.options.1"),
    (query(options=["a", "\udfff"]), "invalid_field", f"{Q}.options.1"),
    (query(options=["a", "b", "a"]), "duplicate_option", f"{Q}.options.2"),
    (query(options=["Straße", " STRASSE"]), "duplicate_option", f"{Q}.options.1"),
    (request(case_insensitive=False, queries=[QUERY | {"options": ["a", "a"]}]), "duplicate_option", f"{Q}.options.1"),
    (query(max_tokens=5), "invalid_field", f"{Q}.max_tokens"),
    (query(top_k=5), "invalid_field", f"{Q}.top_k"),
    (query(calibration={"a": 1, "b": 0}), "invalid_field", f"{Q}.calibration"),
    (query(generate=True), "invalid_field", f"{Q}.generate"),
]

COMBINATIONS: list[Fault] = [
    (query(template="{x}{?}"), "missing_value", f"{Q}.combinations"),
    (query(template="{x}{?}", combinations=[]), "missing_value", f"{Q}.combinations"),
    (query(template="{x}{?}", combinations=[{"x": "1"}, {}]), "missing_value", f"{Q}.combinations.1.x"),
    (query(template="{x}{?}", combinations=[{"x": "1", "y": "2"}]), "unknown_placeholder", f"{Q}.combinations.0.y"),
    (query(combinations=[{"x": "1"}]), "unknown_placeholder", f"{Q}.combinations.0.x"),
    (query(combinations=[{}, {}]), "invalid_field", f"{Q}.combinations.1"),
    (query(template="{x}{?}", combinations=[{"x": 1}]), "invalid_field", f"{Q}.combinations.0.x"),
    (query(template="{x}{?}", combinations=[{"x": None}]), "invalid_field", f"{Q}.combinations.0.x"),
    (query(template="{x}{?}", combinations=[{"x": "v" * 257}]), "invalid_field", f"{Q}.combinations.0.x"),
    (query(template="{x}{?}", combinations=[{"x": "\ud800"}]), "invalid_field", f"{Q}.combinations.0.x"),
    (query(template="{x}{?}", combinations=["x"]), "invalid_field", f"{Q}.combinations.0"),
    (query(template="{x}{?}", combinations={"x": "1"}), "invalid_field", f"{Q}.combinations"),
    (query(template="{x}{?}", combinations="each"), "invalid_field", f"{Q}.combinations"),
    (query(template="{x}{?}", combinations="all"), "missing_value", f"{Q}.values.x"),
    (query(template="{x}{?}", values={"x": ["1"]}), "invalid_field", f"{Q}.values"),
    (query(template="{x}{?}", combinations=[{"x": "1"}], values={"x": ["1"]}), "invalid_field", f"{Q}.values"),
    (query(template="{x}{?}", combinations="all", values={"x": []}), "invalid_field", f"{Q}.values.x"),
    (query(template="{x}{?}", combinations="all", values={"x": "12"}), "invalid_field", f"{Q}.values.x"),
    (query(template="{x}{?}", combinations="all", values={"x": ["1", 2]}), "invalid_field", f"{Q}.values.x.1"),
    (query(template="{x}{?}", combinations="all", values={"y": ["1"]}), "unknown_placeholder", f"{Q}.values.y"),
    (
        query(template="{x}{y}{?}", combinations="all", values={"x": ["v"] * 1001, "y": ["w"]}),
        "too_many_combinations",
        f"{Q}.combinations",
    ),
]

EXTRACTION: list[Fault] = [
    (extraction(), "extraction_disabled", f"{Q}.template"),
    (extraction("It is {n}"), "extraction_disabled", f"{Q}.template"),
    (extraction(generate=True), "generation_disabled", f"{Q}.generate"),
    (extraction(generate={"n": 2}), "generation_disabled", f"{Q}.generate"),
    (query(template="It is {*}"), "invalid_field", f"{Q}.options"),
    (extraction(max_tokens=0), "invalid_field", f"{Q}.max_tokens"),
    (extraction(max_tokens=65), "invalid_field", f"{Q}.max_tokens"),
    (extraction(max_tokens=101, generate=True), "invalid_field", f"{Q}.max_tokens"),
    (extraction(max_tokens=5.0), "invalid_field", f"{Q}.max_tokens"),
    (extraction(top_k=21), "invalid_field", f"{Q}.top_k"),
    (extraction(top_k=True), "invalid_field", f"{Q}.top_k"),
    (extraction("{n}", generate=True), "invalid_field", f"{Q}.generate"),
    (extraction(generate=1), "invalid_field", f"{Q}.generate"),
    (extraction(generate=True, top_k=2), "invalid_field", f"{Q}.top_k"),
    (extraction(generate=True, calibration={"a": 1, "b": 0}), "invalid_field", f"{Q}.calibration"),
    (extraction(generate={"temperature": 2.01}), "invalid_field", f"{Q}.generate.temperature"),
    (extraction(generate={"temperature": -0.1}), "invalid_field", f"{Q}.generate.temperature"),
    (extraction(generate={"temperature": float("nan")}), "invalid_field", f"{Q}.generate.temperature"),
    (extraction(generate={"temperature": 10**400}), "invalid_field", f"{Q}.generate.temperature"),
    (extraction(generate={"top_p": 0}), "invalid_field", f"{Q}.generate.top_p"),
    (extraction(generate={"top_p": 1.1}), "invalid_field", f"{Q}.generate.top_p"),
    (extraction(generate={"top_k": 0}), "invalid_field", f"{Q}.generate.top_k"),
    (extraction(generate={"top_k": 101}), "invalid_field", f"{Q}.generate.top_k"),
    (extraction(generate={"n": 7}), "invalid_field", f"{Q}.generate.n"),
    (extraction(generate={"n": 0}), "invalid_field", f"{Q}.generate.n"),
    (extraction(generate={"seed": "1"}), "invalid_field", f"{Q}.generate.seed"),
    (extraction(generate={"seed": 2**64}), "invalid_field", f"{Q}.generate.seed"),
    (extraction(calibration={"a": 1}), "invalid_field", f"{Q}.calibration.b"),
    (extraction(calibration={"a": "1", "b": 0}), "invalid_field", f"{Q}.calibration.a"),
    (extraction(calibration={"a": float("inf"), "b": 0}), "invalid_field", f"{Q}.calibration.a"),
    (extraction(calibration=[1, 0]), "invalid_field", f"{Q}.calibration"),
]

INPUTS: list[Fault] = [
    (inputs({"messages": None}), "invalid_field", "inputs.0.messages"),
    (inputs("text"), "invalid_field", "inputs.0"),
    (inputs({"id": 3}), "invalid_field", "inputs.0.id"),
    (inputs({"id": "i" * 129}), "invalid_field", "inputs.0.id"),
    (inputs({"id": "a"}, {"id": "a"}), "duplicate_id", "inputs.1.id"),
    (inputs({"id": "1"}, {}), "duplicate_id", "inputs.1.id"),
    (inputs({"query_ids": ["b"]}), "unknown_query_id", "inputs.0.query_ids.0"),
    (inputs({"query_ids": ["a", "a"]}), "duplicate_id", "inputs.0.query_ids.1"),
    (inputs({"query_ids": "a"}), "invalid_field", "inputs.0.query_ids"),
    (inputs({"query_ids": [1]}), "invalid_field", "inputs.0.query_ids.0"),
    (inputs({}, {"query_ids": []}), "empty_queries", "inputs.1.query_ids"),
    (inputs({}, {"queries": []}), "empty_queries", "inputs.1.queries"),
    (inputs({}, queries=[]), "empty_queries", "scoring.queries"),
    (inputs({"query_ids": ["a"], "queries": [QUERY]}), "duplicate_id", "inputs.0.queries.0.id"),
    (inputs({}, {"queries": [QUERY, QUERY]}), "duplicate_id", "inputs.1.queries.1.id"),
    (inputs({}, {"queries": [QUERY | {"options": []}]}), "too_many_options", "inputs.1.queries.0.options"),
    (inputs({}, {"queries": [QUERY | {"template": "{"}]}), "invalid_template", "inputs.1.queries.0.template"),
    (inputs({"queries": [QUERY]}, queries=[QUERY | {"options": [""]}]), "invalid_field", f"{Q}.options.0"),
    (inputs({"parameters": {"brand": 5}}), "invalid_field", "inputs.0.parameters.brand"),
]

PACKS: list[Fault] = [
    (pack(), "unknown_pack", "scoring.packs.0.id"),
    (request(packs=[{}]), "invalid_field", "scoring.packs.0.id"),
    (pack(contxt="ai"), "invalid_field", "scoring.packs.0.contxt"),
    (pack(decision={"treshold": 1}), "invalid_field", "scoring.packs.0.decision.treshold"),
    (pack(decision={"mode": "min"}), "invalid_field", "scoring.packs.0.decision.mode"),
    (pack(decision={"thresholds": {"spam": "x"}}), "invalid_field", "scoring.packs.0.decision.thresholds.spam"),
    (pack(include_queries=1), "invalid_field", "scoring.packs.0.include_queries"),
]


@pytest.mark.parametrize(
    ("body", "code", "param"), BODY + CONTENT + QUERIES + OPTIONS + COMBINATIONS + EXTRACTION + INPUTS + PACKS
)
def test_each_fault_has_its_code_and_names_its_field(body: object, code: str, param: str | None) -> None:
    assert rejection(body) == (code, param)


@pytest.mark.parametrize(
    "body", [content(IMAGE, AUDIO, VIDEO), extraction(), extraction("{$}"), extraction(generate=True), pack()]
)
def test_what_was_off_is_accepted_once_it_is_on(body: object) -> None:
    parse_request(body, features=EVERYTHING)


def test_media_that_the_model_reads_can_be_switched_off() -> None:
    features = Features(media=frozenset({"image"}), media_disabled=frozenset({"image"}))
    assert rejection(content(IMAGE), features=features) == ("media_disabled", "messages.0.content.0")


def test_the_chat_endpoint_misses_scoring_before_anything_else() -> None:
    body = {"messages": [{"role": "tool", "content": 5}]}
    assert rejection(body, missing_scoring="scoring_required") == ("scoring_required", "scoring")


def test_the_first_fault_in_the_document_is_named() -> None:
    late_first = {"scoring": {"queries": [{"options": 5, "id": 5, "template": 5}]}, "messages": 5}
    assert rejection(late_first) == ("invalid_field", "scoring.queries.0.options")
    assert rejection({"messages": 5, **late_first}) == ("invalid_field", "messages")


def test_prompts_are_counted_per_input() -> None:
    grid = QUERY | {"template": "{x}{?}", "combinations": "all", "values": {"x": [str(i) for i in range(6)]}}
    limits = Limits(max_prompts_per_input=10)
    parse_request(inputs({}, {}, queries=[grid]), limits=limits)
    two = [grid, grid | {"id": "b"}]
    assert rejection(request(queries=two), limits=limits) == ("too_many_prompts", "scoring.queries")
    assert rejection(inputs({"query_ids": ["a"], "queries": [grid | {"id": "c"}]}, queries=two), limits=limits) == (
        "too_many_prompts",
        "inputs.0.queries",
    )
    assert rejection(inputs({"query_ids": ["a", "b"]}, queries=two), limits=limits) == (
        "too_many_prompts",
        "inputs.0.query_ids",
    )


def test_extraction_slots_are_counted_with_their_combinations() -> None:
    grid = {"id": "a", "template": "{x}{n}", "combinations": [{"x": str(i)} for i in range(11)]}
    body = request(queries=[grid])
    assert rejection(body, features=EVERYTHING) == ("too_many_extractions", "scoring.queries")
    parse_request(body, features=EVERYTHING, limits=Limits(max_extractions_per_input=11))


def test_millions_of_combinations_are_refused_without_being_made() -> None:
    values = {name: [str(i) for i in range(10)] for name in "xyz"}
    grids = [
        {"id": str(i), "template": "{x}{y}{z}{?}", "options": ["a"], "combinations": "all", "values": values}
        for i in range(5000)
    ]
    assert rejection(request(queries=grids)) == ("too_many_prompts", "scoring.queries")
