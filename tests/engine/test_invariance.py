"""A score depends on the content and the question alone, to the bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spinf_core.engine.engine import Engine
from spinf_core.testing.requests import Numbers, numbers, query
from spinf_core.testing.toy_plugin import toy_engine

OPENING = "the question is about the status of the north wing. " * 3
CONTENTS = {
    "short": "Sta",
    "empty": "",
    "tile": " gate" * 64,
    "first": OPENING + "it is red",
    "second": OPENING + "it is blue, and the gate is out of it",
    "third": OPENING + "of course not 你好 😀",
    "long": "the gate is red and the wing is blue; " * 12,
}
QUERIES = [
    query("\nIs it red?", [" yes", " no"], "red"),
    query("\nIs it red or blue? answer:", [" red", " blue", " north wing"], "colour"),
    query("\nIs it red or blue? answer: in", [" part", " north", " part of it"], "part"),
    query("tus is it?", [" yes", " no", "in", "in part"], "merges"),
    query(
        " and the {thing} is", [" red", " blue", " out of it"], "thing", combinations="all", values={"thing": ["gate", "wing"]}
    ),
    query("\n" + "the status is in question. " * 6 + "yes?", ["yes", "no"], "long"),
]


def request(contents: list[str], queries: list[dict[str, Any]], **scoring: Any) -> dict[str, Any]:
    inputs = [{"id": name, "messages": [{"content": CONTENTS[name]}]} for name in contents]
    return {"inputs": inputs, "scoring": {"queries": queries, **scoring}}


def score(engine: Engine, contents: list[str], queries: list[dict[str, Any]], **scoring: Any) -> Numbers:
    return numbers(engine.score(request(contents, queries, **scoring)))


def same(found: Numbers, expected: Numbers) -> bool:
    """Whether what was found is what was expected of the same questions, bit for bit."""
    assert found
    return found == {key: expected[key] for key in found}


@pytest.fixture(scope="module", params=[(False, None), (True, 7)], ids=["no BOS", "BOS, window"])
def engine(request: pytest.FixtureRequest, engines: Callable[..., Engine]) -> Engine:
    bos, window = request.param
    return engines(bos=bos, window=window)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> Numbers:
    """Every question asked of every content in a request of its own."""
    found: Numbers = {}
    for content in CONTENTS:
        for each in QUERIES:
            found |= score(engine, [content], [each])
    return found


def test_packed_with_everything_else(engine: Engine, alone: Numbers) -> None:
    assert score(engine, list(CONTENTS), QUERIES) == alone


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_and_company(engine: Engine, alone: Numbers, seed: int) -> None:
    chance = random.Random(seed)
    contents = chance.sample(list(CONTENTS), chance.randint(1, len(CONTENTS)))
    queries = chance.sample(QUERIES, chance.randint(1, len(QUERIES)))
    assert same(score(engine, contents, queries), alone)


def test_beside_a_sibling_that_merges_with_the_content_s_end(engine: Engine, alone: Numbers) -> None:
    merging, *others = [QUERIES[3], QUERIES[0], QUERIES[2]]
    assert same(score(engine, ["short"], [merging, *others]), alone)
    assert same(score(engine, ["short"], others), alone)


def test_among_siblings_that_share_one_to_k_tokens(engine: Engine) -> None:
    words = ["\nIs", "it", "about", "the", "north", "wing", "of", "the", "gate", "and", "the", "status", "of", "it"]
    probe = query(" ".join(words), [" yes", " north wing"], "probe")
    expected = score(engine, ["first"], [probe])
    for shared in range(1, len(words)):
        sibling = query(" ".join([*words[:shared], "blue part?"]), [" no", " in part"], f"sibling {shared}")
        longer = query(" ".join([*words[:shared], *["red"] * 20]), [" no"], f"longer {shared}")
        for queries in ([sibling, probe], [probe, sibling], [longer, sibling, probe]):
            assert same(expected, score(engine, ["first"], queries)), f"{shared} words shared"


@pytest.mark.parametrize("budget", [64, 96, 200, 512])
def test_with_any_budget_of_rows(engines: Callable[..., Engine], budget: int) -> None:
    """Jobs share passes up to the budget."""
    settings = {"engine.token_budget": budget}
    assert score(engines(settings=settings), list(CONTENTS), QUERIES) == score(engines(), list(CONTENTS), QUERIES)


@pytest.mark.parametrize(("largest", "contents"), [(104, ["first", "second", "third", "tile"]), (161, ["long", "tile"])])
@pytest.mark.parametrize("bos", [False, True])
def test_split_by_branches(engines: Callable[..., Engine], bos: bool, largest: int, contents: list[str]) -> None:
    """A job of more rows than the engine runs at once is split, and its content and shared stems are read again."""
    body = request(contents, QUERIES, empty_floor=False)
    whole = engines(bos=bos).score(body)
    split = engines(bos=bos, settings={"engine.token_budget": 64, "engine.max_tokens": largest}).score(body)
    assert split.usage.processed_tokens > whole.usage.processed_tokens
    assert numbers(split) == numbers(whole)


def test_with_floors_cold_cached_and_in_other_company(tmp_path: Path, own_cache: Path, untested: None) -> None:
    with toy_engine(tmp_path / "toy") as fresh:
        cold = score(fresh, ["first"], QUERIES)
        assert score(fresh, ["first"], QUERIES) == cold
        score(fresh, ["second", "first"], QUERIES[::-1])
        assert same(score(fresh, ["first"], QUERIES[:2]), cold)
    with toy_engine(tmp_path / "toy") as again:  # one floor is known, the rest are read beside another content
        score(again, ["empty"], QUERIES[2:3])
        assert score(again, ["first"], QUERIES) == cold
    with toy_engine(tmp_path / "toy", settings={"engine.floor_cache_bytes": 0}) as without:
        assert score(without, ["first"], QUERIES) == cold
        assert score(without, ["first"], QUERIES) == cold


def test_floors_are_scores_of_the_empty_content(engine: Engine, alone: Numbers) -> None:
    for (content, *_), values in alone.items():
        if content == "empty":
            residual, floor_residual, *options = values
            assert residual == floor_residual
            assert options[1::3] == options[2::3]


SCRIPT = """
import sys, torch
from pathlib import Path
from spinf_core.testing.requests import numbers, query, request
from spinf_core.testing.toy_plugin import toy_engine
threads = int(sys.argv[2])
settings = {"engine.threads": threads, "engine.token_budget": 64, "engine.max_tokens": 256}
with toy_engine(Path(sys.argv[1]), settings=settings) as engine:
    assert torch.get_num_threads() == threads
    queries = [query("\\nIs it red?"), query(" Is the gate", [" red", " north wing"]), query("tus:" + " of it" * 30)]
    packed = numbers(engine.score(request(" the north gate" * 40, *queries)))
    for number, each in enumerate(queries):
        each["id"] = f"q{number}"
        found = numbers(engine.score(request(" the north gate" * 40, each)))
        assert all(packed[key] == value for key, value in found.items()), (number, packed, found)
    print(engine.fingerprint, sorted(packed.items()))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_within_a_number_of_threads_and_over_restarts(tmp_path: Path, own_cache: Path, threads: int) -> None:
    """Every process asserts that packing changes nothing; two of them print the same fingerprint and the same numbers."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "toy"), str(threads)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
