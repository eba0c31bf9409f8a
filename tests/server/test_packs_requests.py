"""Packs in requests: what they add to a call, what they leave alone, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from spinf_client import packs as oracle

from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected, SetupError
from spinf_core.packs.request import with_packs
from spinf_core.protocol import Features, ScoreResponse, parse_request

from .conftest import catalog_of, fixture_pack, loaded_for_packs, toy_pack

TEXT = "A red gate in the north wing."
OWN = {"id": "own", "template": "\nIs it red?{?}", "options": [" yes", " no"]}


def asked(*packs: dict[str, Any], text: str = TEXT, **scoring: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "scoring": {"packs": list(packs), **scoring}}


def moderation(**fields: Any) -> dict[str, Any]:
    return {"id": "demo/moderation", **fields}


def result(response: ScoreResponse, number: int = 0) -> dict[str, Any]:
    (entry,) = response.to_dict()["results"]
    found: dict[str, Any] = entry["packs"][number]
    return found


# What a pack brings


def test_a_pack_s_result_is_what_the_client_s_evaluator_makes_of_its_answers(service: ScoringService) -> None:
    response = service.score(asked(moderation(include_queries=True))).to_dict()["results"][0]
    pack = toy_pack()
    expected = oracle.evaluate(pack, oracle.answers_from_result(response, pack))
    (found,) = response["packs"]
    assert (found["id"], found["version"], found["context"]) == ("demo/moderation", "0.1.0", "ai")
    for name, category in expected["categories"].items():
        ours = found["categories"][name]
        assert ours["score"] == pytest.approx(category["score"], abs=2e-6)
        assert ours["percentile"] == pytest.approx(category["percentile"], abs=1e-4)  # of 100, from scores of 6 decimals
        assert ours["flagged"] == category["flagged"]
    decision = expected["decision"]
    assert found["decision"] | {"score": 0, "threshold": 1.2} == decision | {"score": 0, "threshold": 1.2}
    assert found["decision"]["score"] == pytest.approx(decision["score"], abs=1e-5)


def test_a_pack_of_published_probabilities_is_decided_again_to_the_same(service: ScoringService) -> None:
    response = service.score(asked({"id": "demo/product-listings", "include_queries": True})).to_dict()["results"][0]
    pack = toy_pack("product-listings")
    expected = oracle.evaluate(pack, oracle.answers_from_result(response, pack))
    for name, category in expected["categories"].items():
        assert response["packs"][0]["categories"][name] == pytest.approx(category, abs=1e-6)


def test_floats_are_rounded_to_six_decimals(service: ScoringService) -> None:
    for category in result(service.score(asked(moderation())))["categories"].values():
        for number in (category["score"], category["percentile"]):
            assert number == round(number, 6)


def test_raw_queries_and_their_warnings_stay_out_unless_asked_for(service: ScoringService) -> None:
    without = service.score(asked(moderation(), queries=[OWN]))
    with_queries = service.score(asked(moderation(include_queries=True), queries=[OWN]))
    ids = [query["id"] for query in fixture_pack()["scoring"]["queries"]]
    assert [query.id for query in without.results[0].queries] == ["own"]
    assert [query.id for query in with_queries.results[0].queries] == ["own", *ids]
    assert {warning.query_id for warning in without.warnings} <= {"own"}
    assert {warning.query_id for warning in with_queries.warnings} & set(ids)


def test_a_pack_scores_the_same_to_the_bit_with_and_without_own_queries(service: ScoringService) -> None:
    def shares(**scoring: Any) -> list[Any]:
        queries = service.score(asked(moderation(include_queries=True), **scoring)).results[0].queries
        return [(query.id, query.combinations) for query in queries if query.id != "own"]

    template = fixture_pack()["scoring"]["queries"][0]["template"]
    near = OWN | {"template": template[:-10] + "{?}", "options": [" yes", " maybe", " no"]}
    alone = shares()
    assert shares(queries=[OWN]) == alone
    assert shares(queries=[near]) == alone
    assert shares(queries=[OWN], case_insensitive=False, empty_floor=False) == alone


def test_usage_counts_packs_and_their_tokens(service: ScoringService) -> None:
    alone = service.score(asked({"id": "demo/news"})).usage
    both = service.score(asked({"id": "demo/news"}, queries=[OWN])).usage
    assert (alone.packs.count, alone.packs.query_tokens) == (1, alone.scoring.query_tokens)
    assert both.packs == alone.packs
    assert both.scoring.queries == alone.scoring.queries + 1
    assert service.score(asked(queries=[OWN])).usage.packs is None
    assert "packs" not in service.score(asked(queries=[OWN])).to_dict()["results"][0]


def test_the_context_stands_around_the_content(service: ScoringService) -> None:
    question = fixture_pack("news")["scoring"]["queries"][0]
    plain = {"messages": [{"role": "user", "content": f"An article:\n{TEXT}\n"}], "scoring": {"queries": [question]}}
    plain["scoring"] |= {"case_insensitive": False, "empty_floor": False}
    by_hand = service.score(plain).results[0].queries[0].combinations
    by_pack = service.score(asked({"id": "demo/news", "include_queries": True})).results[0].queries[0].combinations
    assert by_pack == by_hand


def test_the_context_is_the_client_s_own(toy_packs: Any) -> None:
    body = asked({"id": "demo/support-triage", "context": "chat"})
    body = {"inputs": [{"messages": body["messages"], "parameters": {"brand": "{X} & {brand}"}}], "scoring": body["scoring"]}
    request, _ = with_packs(parse_request(body, features=Features(packs=toy_packs.known)), toy_packs)
    parts = oracle.wrap(fixture_pack("support-triage"), TEXT, "chat", {"brand": "{X} & Sons"})
    assert request.inputs[0].content == "".join(part["text"] for part in parts).replace("{X} & Sons", "{X} & {brand}")


def test_the_context_goes_before_the_first_message_and_after_the_last(toy_packs: Any) -> None:
    messages = [{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"content": "c"}]
    body = {"messages": messages, "scoring": {"packs": [{"id": "demo/reviews"}]}}
    request, _ = with_packs(parse_request(body, features=Features(packs=toy_packs.known)), toy_packs)
    assert request.inputs[0].content == "A customer's review:\nab\n\nc\n"
    body["messages"] = []
    request, _ = with_packs(parse_request(body, features=Features(packs=toy_packs.known)), toy_packs)
    assert request.inputs[0].content == "A customer's review:\n\n"


def test_parameters_fill_the_context_of_their_own_input(service: ScoringService) -> None:
    def inputs(*brands: str) -> dict[str, Any]:
        entries = [{"messages": [{"content": TEXT}], "parameters": {"brand": brand}} for brand in brands]
        return {"inputs": entries, "scoring": {"packs": [{"id": "demo/support-triage"}]}}

    both = service.score(inputs("red", "north wing")).results
    assert [both[0].packs, both[1].packs] == [
        service.score(inputs("red")).results[0].packs,
        service.score(inputs("north wing")).results[0].packs,
    ]
    assert both[0].packs != both[1].packs


def test_inputs_with_own_queries_get_the_packs_too(service: ScoringService) -> None:
    entries = [{"messages": [{"content": TEXT}], "queries": [OWN]}, {"messages": [{"content": TEXT}]}]
    first, second = service.score({"inputs": entries, "scoring": {"packs": [{"id": "demo/news"}]}}).results
    assert first.packs == second.packs
    assert ([query.id for query in first.queries], second.queries) == (["own"], ())


def test_two_packs_of_one_context_share_a_call(tmp_path: Path) -> None:
    packs = [toy_pack("news", pack="demo/a"), toy_pack("news", pack="demo/b")]
    service = ScoringService(loaded_for_packs(), packs=catalog_of(tmp_path, *packs))
    both = service.score(asked({"id": "demo/a"}, {"id": "demo/b", "include_queries": True}))
    alone = service.score(asked({"id": "demo/b"}))
    service.close()
    assert [entry["id"] for entry in both.results[0].packs] == ["demo/a", "demo/b"]
    assert both.results[0].packs[1]["categories"] == alone.results[0].packs[0]["categories"]
    assert len(both.results[0].queries) == len(packs[0]["scoring"]["queries"])
    assert both.usage.packs.count == 2


# The decision


@pytest.mark.parametrize(
    "decision",
    [
        {"mode": "max"},
        {"mode": "max", "threshold": 0.01},
        {"threshold": -100.0},
        {"mode": "per_category", "thresholds": {"spam": 0.0, "hate": None}, "critical": []},
        {"critical": ["spam"], "thresholds": {"spam": 0.0}},
    ],
)
def test_a_call_changes_the_decision_as_the_client_would(service: ScoringService, decision: dict[str, Any]) -> None:
    response = service.score(asked(moderation(include_queries=True, decision=decision))).to_dict()["results"][0]
    pack = toy_pack()
    expected = oracle.evaluate(pack, oracle.answers_from_result(response, pack), **decision)["decision"]
    found = response["packs"][0]["decision"]
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, abs=1e-5) if isinstance(value, float) else value)


def test_an_edited_pack_decides_with_its_fallback_and_says_so(tmp_path: Path) -> None:
    pack = toy_pack()
    pack["reads"][0]["mean"] += 1
    service = ScoringService(loaded_for_packs(), packs=catalog_of(tmp_path, pack))
    decision = result(service.score(asked(moderation())))["decision"]
    service.close()
    assert decision["mode"] == "max"
    assert decision["warning"].startswith("micro-layer lock mismatch")


# What is refused

PACK = "scoring.packs.0"
Q = "scoring.queries.0"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (asked({"id": "demo/none"}), "unknown_pack", f"{PACK}.id"),
        (asked(moderation(version="9")), "unknown_pack_version", f"{PACK}.version"),
        (asked(moderation(context="letter")), "invalid_field", f"{PACK}.context"),
        (asked(moderation(contxt="ai")), "invalid_field", f"{PACK}.contxt"),
        (asked(moderation(decision={"treshold": 1})), "invalid_field", f"{PACK}.decision.treshold"),
        (asked({"id": "demo/news", "decision": {"mode": "micro_layer"}}), "invalid_field", f"{PACK}.decision.mode"),
        (asked(moderation(decision={"thresholds": {"spm": 1}})), "unknown_category", f"{PACK}.decision.thresholds.spm"),
        (asked(moderation(decision={"critical": ["spam", "x"]})), "unknown_category", f"{PACK}.decision.critical.1"),
        (asked(moderation(), moderation()), "duplicate_id", "scoring.packs.1.id"),
        (asked(moderation(), {"id": "demo/news"}), "pack_conflict", "scoring.packs.1.context"),
        (asked(moderation(), queries=[OWN | {"id": "spam-kind"}]), "duplicate_id", f"{Q}.id"),
        (asked(moderation(), queries=[OWN | {"group": "demo/moderation@0.1.0"}]), "reserved_group", f"{Q}.group"),
        (asked({"id": "demo/support-triage"}), "missing_value", f"{PACK}.context"),
        (asked(moderation()) | {"limits": {"max_prompts_per_input": 40}}, "too_many_prompts", "scoring.packs"),
        (asked(moderation()) | {"features": {"packs": ["demo/news"]}}, "unknown_pack", f"{PACK}.id"),
        (asked(moderation()) | {"features": {"packs": False}}, "unknown_pack", f"{PACK}.id"),
    ],
)
def test_each_fault_has_its_code_and_names_its_field(
    service: ScoringService, body: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(Rejected) as caught:
        service.score(body)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        (None, "missing_value", "inputs.0.parameters.brand"),
        ({"brnd": "x", "brand": "y"}, "unknown_placeholder", "inputs.0.parameters.brnd"),
        ({"brand": 5}, "invalid_field", "inputs.0.parameters.brand"),
    ],
)
def test_parameters_are_checked(service: ScoringService, parameters: Any, code: str, param: str) -> None:
    entry = {"messages": [{"content": TEXT}]} | ({} if parameters is None else {"parameters": parameters})
    with pytest.raises(Rejected) as caught:
        service.score({"inputs": [entry], "scoring": {"packs": [{"id": "demo/support-triage"}]}})
    assert (caught.value.code, caught.value.param) == (code, param)


def test_own_queries_of_an_input_are_checked_too(service: ScoringService) -> None:
    entry = {"messages": [{"content": TEXT}], "queries": [OWN | {"id": "spam-kind"}]}
    with pytest.raises(Rejected) as caught:
        service.score({"inputs": [entry], "scoring": {"packs": [moderation()]}})
    assert (caught.value.code, caught.value.param) == ("duplicate_id", "inputs.0.queries.0.id")


def test_a_group_of_a_pack_that_is_not_in_the_call_is_the_caller_s(service: ScoringService) -> None:
    """So a client may run an edited copy of a pack as ordinary queries."""
    scoring = oracle.request_scoring(toy_pack("news"))
    assert service.score({"messages": [{"content": TEXT}], "scoring": scoring}).results[0].queries


def test_media_that_a_pack_does_not_read_are_refused(toy_packs: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body = asked(moderation()) | {"messages": [{"content": [{"type": "text", "text": "a"}, image]}]}
    request = parse_request(body, features=Features(packs=toy_packs.known, media=frozenset({"image"})))
    with pytest.raises(Rejected) as caught:
        with_packs(request, toy_packs)
    assert (caught.value.code, caught.value.param) == ("pack_media_not_supported", "messages.0.content.1")


def test_packs_that_differ_in_the_case_rule_conflict(tmp_path: Path) -> None:
    other = toy_pack("news", pack="demo/b")
    other["scoring"]["case_insensitive"] = True
    catalog = catalog_of(tmp_path, toy_pack("news", pack="demo/a"), other)
    body = asked({"id": "demo/a"}, {"id": "demo/b"})
    with pytest.raises(Rejected) as caught:
        with_packs(parse_request(body, features=Features(packs=catalog.known)), catalog)
    assert (caught.value.code, caught.value.param) == ("pack_conflict", "scoring.packs.1.id")


def test_packs_whose_raw_queries_could_not_be_told_apart_conflict(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, toy_pack("news", pack="demo/a"), toy_pack("news", pack="demo/b"))
    body = asked({"id": "demo/a", "include_queries": True}, {"id": "demo/b", "include_queries": True})
    with pytest.raises(Rejected) as caught:
        with_packs(parse_request(body, features=Features(packs=catalog.known)), catalog)
    assert (caught.value.code, caught.value.param) == ("pack_conflict", "scoring.packs.1.include_queries")


def test_a_pack_of_another_model_is_not_available_and_says_why(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, toy_pack("news"), toy_pack("reviews", model="other"))
    body = asked({"id": "demo/reviews"})
    with pytest.raises(Rejected, match="written for the model other") as caught:
        with_packs(parse_request(body, features=Features(packs=catalog.known)), catalog)
    assert (caught.value.code, caught.value.param) == ("pack_not_available", "scoring.packs.0.id")


def test_a_pack_s_templates_are_exempt_from_the_limit_on_templates(service: ScoringService) -> None:
    limited = asked({"id": "demo/news"}) | {"limits": {"max_query_tokens": 2}}
    assert service.score(limited).results[0].packs == service.score(asked({"id": "demo/news"})).results[0].packs
    with pytest.raises(Rejected, match="at most 2 are allowed"):
        service.score(asked(queries=[OWN]) | {"limits": {"max_query_tokens": 2}})


def test_a_pack_that_the_tokenizer_cannot_ask_stops_the_service(tmp_path: Path) -> None:
    pack = toy_pack("news")
    pack["scoring"]["queries"][0] |= {"template": "\nIs it re{?}", "options": ["d", " no"]}
    with pytest.raises(
        SetupError, match=r"pack demo/news@0.1.0 cannot be asked of toy: .*queries.0.options.0: option 'd' merges"
    ):
        ScoringService(loaded_for_packs(), packs=catalog_of(tmp_path, pack))


def test_every_result_is_json_with_finite_numbers(service: ScoringService) -> None:
    response = service.score(asked(moderation(include_queries=True), text="")).to_dict()
    assert json.loads(json.dumps(response, allow_nan=False)) == response
    assert all(math.isfinite(each["score"]) for each in response["results"][0]["packs"][0]["categories"].values())
