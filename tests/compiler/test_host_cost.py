"""Compiling many questions costs a small multiple of tokenizing them; `benchmarks/host_cost.py` measures it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from spinf_core.compiler.compile import Compiler
from spinf_core.protocol import parse_request
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()
COUNT = 2000


def word(generator: random.Random) -> str:
    return "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=8))


def alike(generator: random.Random) -> str:
    return "\n\nIs it about " + " ".join(generator.choices(["red", "blue", "north", "gate", "wing"], k=12)) + "?\nAnswer:"


def unlike(generator: random.Random) -> str:
    return " ".join([word(generator), *generator.choices(["red", "blue", "north", "gate", "wing"], k=12), word(generator)])


def best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds)


@pytest.mark.parametrize(("template", "most"), [(alike, 2), (unlike, 9)])
def test_compiling_takes_a_small_multiple_of_tokenizing(template: Callable[[random.Random], str], most: float) -> None:
    generator = random.Random(0)
    texts = [template(generator) for _ in range(COUNT)]
    queries = [{"id": str(n), "template": text + "{?}", "options": [" yes", " no"]} for n, text in enumerate(texts)]
    body = {"messages": [{"role": "user", "content": "the question is " * 20}], "scoring": {"queries": queries}}
    request = parse_request(body)
    compiler = Compiler(TOKENIZER, 100_000)
    ratio = best(lambda: compiler.compile(request)) / best(lambda: [TOKENIZER.encode(text) for text in texts])
    assert ratio < most


def test_a_content_without_a_clean_cut_is_not_tokenized_again_for_every_question() -> None:
    generator = random.Random(0)
    queries = [{"id": str(n), "template": unlike(generator) + "{?}", "options": [" yes"]} for n in range(200)]
    body = {"messages": [{"role": "user", "content": "x" * 4000}], "scoring": {"queries": queries}}
    request = parse_request(body)
    compiler = Compiler(TOKENIZER, 100_000)
    assert best(lambda: compiler.compile(request)) < 50 * best(lambda: TOKENIZER.encode("x" * 4000))
