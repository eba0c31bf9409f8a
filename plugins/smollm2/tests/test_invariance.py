"""On the real weights: whatever shares a pass with a question, in whatever order, split or cached, no bit of a score moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch

from spinf_core.engine.engine import Engine
from spinf_core.engine.loading import Loaded
from spinf_core.engine.service import ScoringService

from .prompts import CONTENTS

pytestmark = pytest.mark.weights

INPUTS = {name: CONTENTS[name] for name in ("a letter", "half a word", "prose", "JSON", "emoji")}
QUERIES: dict[str, dict[str, Any]] = {
    "refund": {"template": "\n\nIs the customer asking for a refund?\nAnswer:{?}", "options": [" yes", " no"]},
    "angry": {"template": "\n\nIs the customer angry?\nAnswer:{?}", "options": [" certainly not", " certainly", " unclear"]},
    "status": {"template": "tus is{?}", "options": [" open", " in", " in part"]},
    "language": {"template": "\nLanguage:{?}", "options": [" English", " Chinese", " JavaScript Object Notation"]},
    "wing": {"template": " and then{?}", "options": [" North Wing", " North Gate"]},
    "long": {
        "template": "\n\n" + "Read the message above once more, slowly. " * 3 + "Is it polite?{?}",
        "options": [" Yes", " No"],
    },
}

Numbers = dict[tuple[str, str], tuple[float | None, ...]]


def asked(inputs: list[str], queries: list[str], floors: bool = False) -> dict[str, Any]:
    entries = [{"id": name, "messages": [{"role": "user", "content": INPUTS[name]}]} for name in inputs]
    return {"inputs": entries, "scoring": {"queries": [{"id": n, **QUERIES[n]} for n in queries], "empty_floor": floors}}


def numbers(service: ScoringService, body: dict[str, Any]) -> Numbers:
    """Every number of a response by input and query, unrounded: equal numbers are equal bits."""
    found: Numbers = {}
    for result in service.score(body).results:
        for query in result.queries:
            (combination,) = query.combinations
            options = [(option.logprob, option.p, option.floor_p) for option in combination.options]
            rest = (combination.residual, combination.floor_residual)
            found[result.input_id, query.id] = (*(number for option in options for number in option), *rest)
    return found


@pytest.fixture(scope="module", params=["fp32", "bf16", "w8a16"])
def loaded(engine_of: Callable[[str], Engine], request: pytest.FixtureRequest) -> Iterator[Loaded]:
    with engine_of(request.param) as engine:
        yield engine.service.loaded


@pytest.fixture
def fresh(loaded: Loaded) -> Iterator[Callable[..., ScoringService]]:
    """Services of their own, with nothing cached; `budget` and `max_rows` of their passes may be set."""
    services = []

    def make(**rows: int) -> ScoringService:
        services.append(ScoringService(attrs.evolve(loaded, **rows)))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="module")
def alone(loaded: Loaded) -> Numbers:
    """Each question on each content in a request of its own, one after another."""
    service = ScoringService(loaded)
    found: Numbers = {}
    for name in INPUTS:
        for query in QUERIES:
            found |= numbers(service, asked([name], [query]))
    service.close()
    return found


Fresh = Callable[..., ScoringService]


def test_the_self_test_finds_nothing(loaded: Loaded) -> None:
    assert loaded.self_test.failures == ()


def test_packed(fresh: Fresh, alone: Numbers) -> None:
    assert numbers(fresh(), asked([*INPUTS], [*QUERIES])) == alone


def test_permuted(fresh: Fresh, alone: Numbers) -> None:
    assert numbers(fresh(), asked([*INPUTS][::-1], [*QUERIES][::-1])) == alone
    some = numbers(fresh(), asked(["JSON", "a letter", "prose"], ["long", "refund"]))
    assert some == {key: alone[key] for key in some}


@pytest.mark.parametrize(("budget", "max_rows"), [(96, 256), (176, 176), (512, 1024)])
def test_split_over_budgets(fresh: Fresh, alone: Numbers, budget: int, max_rows: int) -> None:
    assert numbers(fresh(budget=budget, max_rows=max_rows), asked([*INPUTS], [*QUERIES])) == alone


def test_several_requests_at_once(fresh: Fresh, alone: Numbers) -> None:
    service = fresh()
    tickets = [service.submit(asked([name], [*QUERIES])) for name in INPUTS]
    for name, ticket in zip(INPUTS, tickets, strict=True):
        for query in ticket.future.result().results[0].queries:
            logprobs = tuple(option.logprob for option in query.combinations[0].options)
            assert logprobs == alone[name, query.id][:-2:3]


def test_floors_cold_cached_and_read_with_others(fresh: Fresh) -> None:
    service = fresh()
    first = numbers(service, asked(["prose"], ["angry", "refund"], floors=True))
    assert numbers(service, asked(["prose"], ["angry", "refund"], floors=True)) == first
    everything = numbers(fresh(), asked([*INPUTS], [*QUERIES], floors=True))
    assert first == {key: everything[key] for key in first}


def test_one_thread_and_two(fresh: Fresh, alone: Numbers) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)  # counts for the threads that begin from now on
            assert numbers(fresh(), asked([*INPUTS], [*QUERIES])) == alone
    finally:
        torch.set_num_threads(before)
