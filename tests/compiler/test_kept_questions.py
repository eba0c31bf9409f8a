"""The questions of packs from several threads: each is compiled once, and keeps nobody waiting who does not want it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from spinf_core.compiler import options
from spinf_core.compiler.options import OptionCompiler
from spinf_core.compiler.questions import KeptQuestions, QuestionCompiler, Questions
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedQuery, parse_request
from spinf_core.testing.requests import query, request
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()


def queries(*templates: str) -> list[ParsedQuery]:
    parsed = parse_request(request("the gate", *map(query, templates)))
    return list(parsed.inputs[0].queries)


class GatedCompiler:
    """Lets the compiling of some queries wait for a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: Iterable[ParsedQuery], error: Exception | None = None) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.compiled: list[str] = []
        self._slow, self._error = set(map(id, slow)), error
        compile_ = QuestionCompiler.compile

        def gated(compiler: QuestionCompiler, wanted: Iterable[ParsedQuery], words: Any) -> list[Questions]:
            wanted = list(wanted)
            self.compiled += [each.id for each in wanted]
            if self._slow & set(map(id, wanted)):
                self.entered.set()
                assert self.gate.wait(20)
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
            return compile_(compiler, wanted, words)

        monkeypatch.setattr(QuestionCompiler, "compile", gated)


@pytest.fixture
def kept() -> KeptQuestions:
    return KeptQuestions(TOKENIZER, 512, Limits())


def started(pool: ThreadPoolExecutor, kept: KeptQuestions, wanted: list[ParsedQuery]) -> Future[list[Questions]]:
    return pool.submit(kept.get, wanted)


def test_who_wants_another_query_does_not_wait(kept: KeptQuestions, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = queries("\nIs it red?", "\nIs it blue?")
    compiler = GatedCompiler(monkeypatch, [slow])
    with ThreadPoolExecutor(2) as pool:
        first = started(pool, kept, [slow])
        assert compiler.entered.wait(20)
        assert started(pool, kept, [other]).result(20)
        assert not first.done()
        compiler.gate.set()
        assert first.result(20)


def test_a_query_that_many_want_is_compiled_once(kept: KeptQuestions, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = queries("\nIs it red?", "\nIs it blue?", "\nIs it about a gate?")
    compiler = GatedCompiler(monkeypatch, mine[:1])
    with ThreadPoolExecutor(6) as pool:
        waiting = [started(pool, kept, mine[: 1 + number % 3]) for number in range(6)]
        assert compiler.entered.wait(20)
        compiler.gate.set()
        found = [each.result(20) for each in waiting]
    assert sorted(compiler.compiled) == sorted(each.id for each in mine)
    assert all(each[0] is found[0][0] for each in found)
    assert len(kept) == 3


def test_who_waits_for_one_that_fails_compiles_its_own(kept: KeptQuestions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure may be of another query that was compiled together with it."""
    good, bad = queries("\nIs it red?", "\nIs it blue?")
    compiler = GatedCompiler(monkeypatch, [bad], Rejected("option_boundary", "of the other query"))
    with ThreadPoolExecutor(2) as pool:
        failing = started(pool, kept, [good, bad])
        assert compiler.entered.wait(20)
        waiting = started(pool, kept, [good])
        compiler.gate.set()
        with pytest.raises(Rejected):
            failing.result(20)
        assert waiting.result(20)


def test_plans_for_any_number_of_endings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short template's plan depends on the content's end, and packs' plans live as long as the server."""
    monkeypatch.setattr(options, "MOST_ENDINGS", 10)
    compiler = OptionCompiler(TOKENIZER, Limits())
    for number in range(100):
        compiler.plan(f"gate{number}", (" yes", " no"), True, "q.options")
    assert len(compiler._by_ending) <= 10
