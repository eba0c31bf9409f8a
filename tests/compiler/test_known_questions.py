"""Questions that come again, of other contents: compiled once, and as they would be anew."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest

from spinf_core.compiler import known
from spinf_core.compiler.compile import CompiledRequest, Compiler
from spinf_core.compiler.known import KnownQuestions, asked_key
from spinf_core.compiler.questions import QuestionCompiler
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedRequest, parse_request
from spinf_core.protocol.parse import DEFAULT_LIMITS
from spinf_core.testing.requests import query, request
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()
COMBINATIONS = [{"A": "red", "B": "north"}, {"A": "blue", "B": "gate"}]


def parsed(content: str, *queries: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> ParsedRequest:
    return parse_request(request(content, *(queries or (query("\nIs it red?"), query("\nIs it blue?")))), limits=limits)


def filled(**changed: Any) -> dict[str, Any]:
    return query("\nIs the {A} thing at {B}?", combinations=COMBINATIONS) | changed


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the queries that were compiled."""
    ids: list[str] = []
    compile_ = QuestionCompiler.compile

    def counted(compiler: QuestionCompiler, queries: Any, words: Any) -> Any:
        queries = list(queries)
        ids.extend(each.id for each in queries)
        return compile_(compiler, queries, words)

    monkeypatch.setattr(QuestionCompiler, "compile", counted)
    return ids


def told(compiled: CompiledRequest) -> list[Any]:
    """All that a response and a pass are made of."""
    found: list[Any] = [list(compiled.floors.numbers), compiled.floors.branches, compiled.floors.tokens]
    for entry in compiled.inputs:
        job = entry.job
        arrays = (job.content, job.token, job.parent, job.depth, job.end, job.pair_node, job.pair_column)
        found += [entry.id, entry.warnings, [array.tolist() for array in arrays]]
        found += [[each.questions.tolist(), each.first, each.plan.options, each.plan.columns.tolist()] for each in job.groups]
        found += [[each.query.key, list(each.values.items()), each.tokens, each.floor] for each in entry.prompts]
    return found


def outcome(compiler: Compiler, request: ParsedRequest) -> list[Any]:
    try:
        return told(compiler.compile(request))
    except Rejected as error:
        return [error.code, error.message, error.param]


def test_the_same_questions_of_another_content_are_not_compiled_again(compiled: list[str]) -> None:
    compiler = Compiler(TOKENIZER, 512)
    for content in ("the gate", "the wing", "the door", "a red door at the north gate, and a blue one"):
        compiler.compile(parsed(content, filled(id="a"), query("\nIs it blue?", id="b")))
    assert compiled == ["a", "b"] * 2


def test_what_is_asked_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_SEEN", 10)
    kept = KnownQuestions()
    for number in range(100):
        ask(kept, number)
        assert len(kept._seen) <= 10
    assert (len(kept), kept.bytes) == (0, 0)
    ask(kept, 99)
    assert len(kept) == 1


@pytest.mark.parametrize("content", ["", "the gate", "a red door at the north gate, and a blue one", "x" * 200])
@pytest.mark.parametrize(
    "queries",
    [
        [filled()],
        [filled(combinations="all", values={"A": ["red", "blue"], "B": ["gate"]})],
        [query("{?}", empty_floor=False), query("gate{?}", id="b")],
        [query("\nIs it red?", options=[" red blue", " no"]), query("\nIs it red?", id="b", empty_floor=False)],
    ],
    ids=["combinations", "a product", "decided by the content's end", "longer options"],
)
def test_what_comes_of_them_is_what_comes_of_them_anew(content: str, queries: list[dict[str, Any]]) -> None:
    used = Compiler(TOKENIZER, 512)
    for other in ("some other content that was here before", "and another one"):
        used.compile(parsed(other, *queries))
    assert outcome(used, parsed(content, *queries)) == outcome(Compiler(TOKENIZER, 512), parsed(content, *queries))


CHANGES: list[dict[str, Any]] = [
    {"id": "other"},
    {"template": "\nIs the {A} thing at the {B}?{?}"},
    {"options": [" no", " yes"]},
    {"empty_floor": False},
    {"group": "some"},
    {"combinations": COMBINATIONS[::-1]},
    {"combinations": COMBINATIONS[:1]},
    {"combinations": [dict(reversed(each.items())) for each in COMBINATIONS]},
    {"combinations": "all", "values": {"A": ["red"], "B": ["north"]}},
]


@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) + str(n) for n, change in enumerate(CHANGES)])
def test_questions_that_differ_in_any_way_are_others(change: dict[str, Any]) -> None:
    one, other = parsed("the gate", filled()), parsed("the gate", filled() | change)
    keys = {asked_key([each.inputs[0].queries], each.limits) for each in (one, other, parsed("the wing", filled()))}
    assert len(keys) == 2


def test_what_one_request_may_ask_another_with_lower_limits_may_not() -> None:
    compiler = Compiler(TOKENIZER, 512)
    for limit, code in (("max_query_tokens", "template_too_long"), ("max_option_tokens", "option_too_long")):
        question = query("\nIs it red?", options=[" red blue", " no"])
        for content in ("the gate", "the wing"):
            compiler.compile(parsed(content, question))
        with pytest.raises(Rejected) as error:
            compiler.compile(parsed("the gate", question, limits=attrs.evolve(Limits(), **{limit: 1})))
        assert error.value.code == code


def test_requests_at_once_get_what_each_asks() -> None:
    compiler = Compiler(TOKENIZER, 512)
    requests = [parsed(f"the gate {n}", filled(id=str(n % 3)), query(f"\nIs it {n % 2}?", id="q")) for n in range(60)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(compiler.compile, requests))
    for each, one in zip(requests, found, strict=True):
        assert told(one) == told(Compiler(TOKENIZER, 512).compile(each))


def kept_of(kept: KnownQuestions, number: int) -> bool:
    one = parsed("the gate", filled(id=str(number)))
    key = asked_key([one.inputs[0].queries], one.limits)
    return kept.get(key) is not None


def ask(kept: KnownQuestions, number: int) -> None:
    compiler = Compiler(TOKENIZER, 512)
    compiler._known = kept
    compiler.compile(parsed("the gate", filled(id=str(number))))


def ask_again(kept: KnownQuestions, number: int) -> None:
    for _ in range(2):
        ask(kept, number)


def test_the_least_recently_used_are_dropped_where_memory_is_short() -> None:
    kept = KnownQuestions()
    ask_again(kept, 0)
    one = kept.bytes
    kept = KnownQuestions(5 * one)
    for number in range(5):
        ask_again(kept, number)
    assert kept_of(kept, 0)
    ask_again(kept, 5)
    assert [kept_of(kept, number) for number in range(6)] == [True, False, True, True, True, True]
    assert kept.bytes == 5 * one
    ask(kept, 5)
    assert kept.bytes == 5 * one


def test_one_that_would_take_most_of_the_memory_is_not_kept() -> None:
    kept = KnownQuestions()
    ask_again(kept, 0)
    kept = KnownQuestions(3 * kept.bytes)
    ask_again(kept, 0)
    assert (len(kept), kept.bytes) == (0, 0)


def test_the_memory_that_is_counted_is_about_what_it_takes() -> None:
    templates = [query(f"\nIs the {{A}} thing number {n} at the gate?", id=str(n)) for n in range(20)]
    for each in templates:
        each["combinations"] = [{"A": f"red {n}"} for n in range(20)]
    compiler = Compiler(TOKENIZER, 512)
    compiler.compile(parsed("the gate", *templates[::-1]))
    compiler._known = kept = KnownQuestions()
    compiler.compile(parsed("the gate", *templates))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    compiler.compile(parsed("the gate", *templates))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept.bytes / 2 < taken < kept.bytes * 2
