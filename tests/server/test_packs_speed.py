"""What a pack costs the host, with bounds so generous that only another order of magnitude breaks them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spinf_core.compiler.compile import Compiler
from spinf_core.engine.packs import pack_results
from spinf_core.engine.scorer import job_scores
from spinf_core.packs.evaluate import Evaluator
from spinf_core.packs.file import pack_of
from spinf_core.packs.request import with_packs
from spinf_core.protocol import Features, parse_request
from spinf_core.tokenizer import Tokenizer

from .conftest import PACKS, catalog_of, fixture_pack, loaded_for_packs, toy_pack

MOST_MS = 10.0
LEAST_PER_SECOND = 2000


def best(runs: Iterator[float]) -> float:
    """The least of several times, which a busy machine disturbs least."""
    return min(runs)


def test_the_evaluator_takes_thousands_of_inputs_a_second() -> None:
    pack = pack_of("moderation", fixture_pack())
    golden = json.loads((PACKS / "moderation/golden.json").read_text(encoding="utf-8"))
    answers = {(answer["query"], answer["F"]): answer["p"] for answer in golden["cases"][0]["answers"]}
    evaluator = Evaluator(pack)

    def run() -> Iterator[float]:
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(100):
                evaluator.evaluate(answers).to_dict()
            yield (time.perf_counter() - began) / 100

    assert 1 / best(run()) > LEAST_PER_SECOND


def test_a_request_with_the_moderation_pack_takes_the_host_a_few_milliseconds(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, toy_pack())
    loaded = loaded_for_packs()
    compiler = Compiler(loaded.model.tokenizer, loaded.max_rows, loaded.settings.limits)
    tokenizer: Tokenizer = loaded.model.tokenizer
    text = "A red gate in the north wing. " * 20
    while len(tokenizer.encode(text)) > 100:
        text = text[:-1]
    body = json.dumps({"messages": [{"content": text}], "scoring": {"packs": [{"id": "demo/moderation"}]}})

    def run() -> Iterator[float]:
        for number in range(12):
            began = time.perf_counter()
            parsed = parse_request(json.loads(body), features=Features(packs=catalog.known))
            request, runs = with_packs(parsed, catalog)
            (entry,) = compiler.compile(request).inputs
            values = np.full(len(entry.job.pair_node), -1.0)
            assert list(pack_results(runs, entry, job_scores(entry.job, values).p))
            if number:
                yield 1000 * (time.perf_counter() - began)

    assert best(run()) < MOST_MS


def test_a_pack_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, toy_pack())
    loaded = loaded_for_packs()
    compiler = Compiler(loaded.model.tokenizer, loaded.max_rows, loaded.settings.limits)
    compiler.keep(pack := next(iter(catalog.packs())).queries)
    monkeypatch.setattr("spinf_core.compiler.questions.tokenize_templates", lambda texts, words: [] if not texts else 1 / 0)
    body = {"messages": [{"content": "A red gate"}], "scoring": {"packs": [{"id": "demo/moderation"}]}}
    request, _ = with_packs(parse_request(body, features=Features(packs=catalog.known)), catalog)
    assert len(compiler.compile(request).inputs[0].prompts) == sum(len(query.combinations) for query in pack)


def test_what_is_kept_is_bounded() -> None:
    from spinf_core.compiler.questions import KeptQuestions

    loaded = loaded_for_packs()
    packs = [pack_of("pack", toy_pack(version=f"0.{number}.0")) for number in range(4)]
    kept = KeptQuestions(loaded.model.tokenizer, loaded.max_rows, loaded.settings.limits, most=100)
    for pack in packs:
        questions = kept.get(pack.queries)
        assert sum(map(len, questions)) == pack.prompts
    assert packs[0].prompts * 2 <= len(kept) <= 100
