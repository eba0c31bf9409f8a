"""Counts against examples counted by hand, and the warnings about scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from spinf_core.engine.engine import Engine
from spinf_core.protocol.usage import PromptTokensDetails, ScoringUsage, Usage
from spinf_core.testing.requests import query, request
from spinf_core.testing.toy import toy_tokenizer
from spinf_core.testing.toy_plugin import toy_engine

# In the toy's vocabulary each word is a token, with or without a space before it, and so is "?".
EXAMPLE = request(
    "the gate is red",  # 4 tokens
    query(" is it?", [" yes", " no"]),  # 3
    query(
        " is the {x}?", [" north wing", " in", " part of it"], combinations=[{"x": "gate"}, {"x": "wing"}]
    ),  # 2 × (4 + 1 + 2)
)


@pytest.mark.parametrize("bos", [False, True])
def test_tokens_are_counted_without_bos(engines: Callable[..., Engine], bos: bool) -> None:
    usage = engines(bos=bos).score(EXAMPLE).usage
    assert usage.prompt_tokens_details == PromptTokensDetails(
        content_tokens=4, text_tokens=4, query_tokens=3 + 2 * 7, floor_tokens=3 + 2 * 7
    )
    assert usage.prompt_tokens == usage.total_tokens == 4 + 17 + 17
    assert usage.completion_tokens == 0
    assert usage.content.tokens == usage.content.text_tokens == 4


def test_what_was_asked_is_counted(toy: Engine) -> None:
    usage = toy.score(EXAMPLE).usage
    assert usage.inputs == 1
    assert usage.scoring == ScoringUsage(
        queries=2, combinations=3, options=2 + 3 + 3, prompts=3, floor_prompts=3, query_tokens=17, floor_tokens=17
    )


def test_a_floor_counts_once_per_template_and_options(toy: Engine) -> None:
    body = request(
        "",
        query(" is it?", [" yes", " no"], "a"),
        query(" is it?", [" yes", " no"], "the same"),
        query(" is {x}?", [" yes", " no"], "the same when filled", combinations=[{"x": "it"}]),
        query(" is it?", [" no", " yes"], "other options"),
        query(" is it?", [" yes", " no"], "none", empty_floor=False),
    )
    body["inputs"] = [{"messages": [{"content": text}]} for text in ("the gate", "the wing", "")]
    del body["messages"]
    usage = toy.score(body).usage
    assert usage.scoring.floor_prompts == 2
    assert usage.scoring.floor_tokens == 2 * 3
    assert usage.scoring.prompts == 3 * 5
    assert usage.scoring.query_tokens == 3 * 5 * 3


def test_a_template_that_merges_with_the_content_counts_as_on_its_own(toy: Engine) -> None:
    usage = toy.score(request("the Sta", query("tus is it?"))).usage
    assert usage.content.tokens == 2
    assert usage.scoring.query_tokens == 4


def test_processed_tokens_are_the_rows_run(tmp_path: Path, own_cache: Path, untested: None) -> None:
    """Shared stems run once, an option's last token takes no row, and a cached floor takes none at all."""
    with toy_engine(tmp_path / "toy") as engine:
        first, second = engine.score(EXAMPLE).usage, engine.score(EXAMPLE).usage
    # Behind 4 tokens of content: " is" once; " it?"; " the" once; " gate?" and " wing?", each with " north" and " part of".
    branches = 1 + 2 + 1 + 2 * (2 + 1 + 2)
    assert first.processed_tokens == 4 + 2 * branches
    assert second.processed_tokens == 4 + branches
    assert attrs.evolve(second, processed_tokens=0) == attrs.evolve(first, processed_tokens=0)


def test_bos_is_processed_and_not_counted(tmp_path: Path, own_cache: Path, untested: None) -> None:
    with toy_engine(tmp_path / "toy", bos=True) as engine:
        usage: Usage = engine.score(request("the gate", query("?", empty_floor=False))).usage
    assert (usage.content.tokens, usage.processed_tokens) == (2, 1 + 2 + 1)


def test_options_that_hold_little_of_the_probability_are_warned_about(toy: Engine) -> None:
    """Nearly every token there is; one that is unlikely; and the same as an option of several tokens, which may well be."""
    tokens = dict.fromkeys(toy_tokenizer().decode([token]) for token in range(2, 350))
    many = [text for text in tokens if text.isascii() and text.isprintable()]
    queries = [query(" is it:\n", options, name) for name, options in [("many", many), ("few", ["~"]), ("longer", ["~~~"])]]
    response = toy.score(request("the wing is red", *queries, case_insensitive=False))
    residual = {answer.id: answer.combinations[0].residual for answer in response.results[0].queries}
    assert residual["many"] < 0.9 < min(residual["few"], residual["longer"])
    assert [(warning.code, warning.input_id, warning.query_id) for warning in response.warnings] == [
        ("low_option_mass", "0", "few")
    ]


def test_templates_that_merge_without_a_clean_cut_are_warned_about(engines: Callable[..., Engine]) -> None:
    content = "z" * 600 + "n"  # one word of more than 512 characters; "no" is a token
    queries = (query("o?", id="merges"), query(" is it?", id="apart"), query("z?", id="apart too"))
    response = engines(settings={"engine.max_tokens": 1024}).score(request(content, *queries))
    warned = [warning for warning in response.warnings if warning.code == "join_not_merged"]
    assert [(warning.input_id, warning.query_id) for warning in warned] == [("0", "merges")]


def test_a_query_is_warned_about_once_however_many_of_its_templates_merge(engines: Callable[..., Engine]) -> None:
    body = request("z" * 600 + "n", query("{x}?{?}", combinations=[{"x": "o"}, {"x": "ow"}, {"x": "z"}]))
    response = engines(settings={"engine.max_tokens": 1024}).score(body)
    assert [warning.code for warning in response.warnings].count("join_not_merged") == 1
