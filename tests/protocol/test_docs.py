"""The examples of docs/scoring-api.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spinf_core.errors import Rejected
from spinf_core.protocol import Features, ScoreResponse, Warning, parse_request
from spinf_core.protocol.response import CombinationResult, InputResult, QueryResult
from spinf_core.protocol.usage import ContentUsage, PromptTokensDetails, ScoringUsage, Timing, Usage

PAGE = (Path(__file__).parents[2] / "docs" / "scoring-api.md").read_text()


def examples(kind: str) -> list[dict[str, Any]]:
    found = re.findall(rf"^```json {kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no example of a {kind} on the page"
    return [json.loads(block) for block in found]


@pytest.mark.parametrize("body", examples("request"))
def test_requests_parse_without_warnings(body: dict[str, Any]) -> None:
    assert parse_request(body).warnings == ()


def test_the_inputs_are_asked_what_the_page_says() -> None:
    asked = [[query.id for query in entry.queries] for entry in parse_request(examples("request")[1]).inputs]
    assert asked == [["mood", "urgent"], ["mood"], ["mood", "topic"]]


@pytest.mark.parametrize("body", examples("extraction request"))
def test_extraction_requests_parse_where_extraction_is_on(body: dict[str, Any]) -> None:
    assert parse_request(body, features=Features(extraction=True, generation=True)).warnings == ()


def test_the_error_is_the_one_that_the_rejected_request_gets() -> None:
    error = examples("error")[0]
    with pytest.raises(Rejected) as caught:
        parse_request(examples("rejected request")[0])
    assert caught.value.envelope(error["request_id"]) == error


def test_the_response_is_one_that_the_classes_give() -> None:
    page = examples("response")[0]
    (result,) = page["results"]
    (query,) = result["queries"]
    (combination,) = query["combinations"]
    scored = CombinationResult(
        **{name: value for name, value in combination.items() if name != "options"},
        texts=tuple(option["text"] for option in combination["options"]),
        **{name: tuple(option[name] for option in combination["options"]) for name in ("logprob", "p", "floor_p")},
    )
    counts = {name: value for name, value in page["usage"].items() if name != "total_tokens"}
    usage = Usage(
        **counts
        | {
            "prompt_tokens_details": PromptTokensDetails(**counts["prompt_tokens_details"]),
            "content": ContentUsage(**counts["content"]),
            "scoring": ScoringUsage(**counts["scoring"]),
        }
    )
    response = ScoreResponse(
        id=page["id"],
        created=page["created"],
        model=page["model"],
        system_fingerprint=page["system_fingerprint"],
        results=(InputResult(result["input_id"], (QueryResult(query["id"], (scored,)),)),),
        warnings=tuple(Warning(**warning) for warning in page["warnings"]),
        usage=usage,
        timing=Timing(**page["timing"]),
    )
    assert response.to_dict() == page


def test_every_code_that_the_tests_of_refusals_expect_is_on_the_page() -> None:
    table = (Path(__file__).parent / "test_rejections.py").read_text()
    codes = set(re.findall(r'"((?:[a-z]+_)+[a-z]+)", (?:f?"(?:scoring|messages|inputs|\{Q\})|None)', table))
    assert len(codes) > 15
    assert [code for code in sorted(codes) if f"`{code}`" not in PAGE] == []
