"""What the README and docs/writing-questions.md show is what a run gives, with the embedded default model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spinf_core.cli.table import render
from spinf_core.engine.engine import Engine
from spinf_core.errors import Rejected
from spinf_core.plugins import discover
from spinf_core.settings import load_settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
WRITING = (ROOT / "docs/writing-questions.md").read_text(encoding="utf-8")
# The pages show float32, of which other processors move the fourth decimal; bfloat16 moves the second, as the README says.
ROUNDING = {"fp32": 2e-3, "bf16": 3e-2}

pytestmark = pytest.mark.weights


def blocks(page: str) -> list[tuple[str, str]]:
    """Every fenced block: what stands behind the fence, and its text."""
    return re.findall(r"^```([^\n]*)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)


def block(page: str, kind: str) -> str:
    (text,) = (text for found, text in blocks(page) if found == kind)
    return text


CONTENT = block(WRITING, "text content")
SHOWN = [(kind, json.loads(text), result) for (kind, text), (_, result) in pairwise(blocks(WRITING)) if "json query" in kind]
REFUSED = [(kind.split()[-1], json.loads(text)) for kind, text in blocks(WRITING) if kind.startswith("json refused ")]


@pytest.fixture(scope="module", params=ROUNDING)
def quant(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(quant: str) -> Iterator[Engine]:
    settings = load_settings({"engine.quant": quant}, environ={})
    with Engine("smollm2-135m", settings=settings, plugins=discover(environ={})) as engine:
        yield engine


def asked(query: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    scoring = {"queries": [query]} | ({"case_insensitive": False} if exact else {})
    return {"messages": [{"role": "user", "content": CONTENT}], "scoring": scoring}


def words_and_numbers(table: str) -> tuple[list[str], list[float]]:
    """A table's words, and its probabilities; bars, which follow from them, and the time left out."""
    numbers = re.compile(r"[-+]?\d\.\d{4}")
    lines = [re.sub(r"[█▏▎▍▌▋▊▉]|; [\d,]+ ms$", "", line).strip() for line in table.splitlines()]
    return [" ".join(numbers.sub("#", line).split()) for line in lines if line], [float(n) for n in numbers.findall(table)]


def assert_same_table(shown: str, run: str, quant: str) -> None:
    (words, numbers), (run_words, run_numbers) = words_and_numbers(shown), words_and_numbers(run)
    assert words == run_words
    assert numbers == pytest.approx(run_numbers, abs=ROUNDING[quant])


def test_the_demo_gives_the_table_of_the_readme(engine, quant):
    request = json.loads((ROOT / "examples/support.json").read_text(encoding="utf-8"))
    assert_same_table(block(README, "text table"), render(engine.score(request).to_dict()), quant)


def test_the_demo_needs_no_warning(engine):
    request = json.loads((ROOT / "examples/support.json").read_text(encoding="utf-8"))
    assert engine.score(request).warnings == ()


def test_the_readme_quotes_the_demo_s_message():
    request = json.loads((ROOT / "examples/support.json").read_text(encoding="utf-8"))
    assert " ".join(request["messages"][0]["content"].split()) in " ".join(README.split())


def test_the_library_example_prints_what_the_readme_says(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SPINF_") and name != "SPINF_CACHE"]:
        monkeypatch.delenv(name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block(README, "python"), "README.md", "exec"), {})
    number = re.compile(r"\d\.\d\d")
    shown, run = block(README, "text output"), printed.getvalue().strip()
    assert number.sub("#", run) == number.sub("#", shown)
    assert [float(n) for n in number.findall(run)] == pytest.approx([float(n) for n in number.findall(shown)], abs=0.0101)


@pytest.mark.parametrize(("kind", "query", "result"), SHOWN, ids=[query["id"] for _, query, _ in SHOWN])
def test_a_question_gets_the_answer_that_the_page_shows(engine, quant, kind, query, result):
    response = engine.score(asked(query, exact=kind == "json query exact")).to_dict()
    table = render(response, 80).split(f"  {query['id']}\n")[1].split("\n\n")[0]
    assert_same_table(result, table, quant)


@pytest.mark.parametrize(("code", "query"), REFUSED, ids=[query["id"] for _, query in REFUSED])
def test_a_question_is_refused_with_the_code_that_the_page_names(engine, code, query):
    with pytest.raises(Rejected) as caught:
        engine.score(asked(query))
    assert caught.value.code == code


def test_only_the_bare_question_is_warned_of(engine):
    queries = [query for _, query, _ in SHOWN]
    warned = [query["id"] for query in queries if engine.score(asked(query)).warnings]
    assert warned == ["question"]


def test_questions_together_score_as_alone(engine):
    queries = [query for _, query, _ in SHOWN]
    together = engine.score({**asked(queries[0]), "scoring": {"queries": queries}}).to_dict()["results"][0]["queries"]
    assert together == [engine.score(asked(query)).to_dict()["results"][0]["queries"][0] for query in queries]


def test_every_sign_of_the_page_s_table_is_one_that_spinf_gives():
    from spinf_core.errors import CODES

    signs = re.findall(r"^\| `(\w+)` \|", WRITING, re.MULTILINE)
    warnings = {"low_option_mass", "join_not_merged"}
    assert signs
    assert [sign for sign in signs if sign not in CODES and sign not in warnings] == []
