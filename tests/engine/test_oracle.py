"""What an engine answers equals the plain forward pass of every full prompt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from spinf_core.engine.engine import Engine
from spinf_core.errors import Rejected
from spinf_core.protocol import ScoreResponse
from spinf_core.testing.tokenizers import texts
from spinf_core.testing.toy import ToyModel

TOLERANCE = 1e-4
TEMPLATES = ["\nIs it red?", " north", "tus:", "\n\nanswer: ", "", " the gate is in question, it is about the wing", " Sta"]
OPTIONS = [" yes", "no", " north wing", "north gate", " in", "in part", "tus", "Status", "IN", "北", "😀", "q"]
QUERIES = st.lists(
    st.tuples(st.sampled_from(TEMPLATES), st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4, unique=True)),
    min_size=1,
    max_size=4,
)
Queries = list[tuple[str, list[str]]]


def request(contents: Sequence[str], queries: Queries, case_insensitive: bool = True) -> dict[str, Any]:
    return {
        "inputs": [{"messages": [{"content": content}]} for content in contents],
        "scoring": {
            "case_insensitive": case_insensitive,
            "queries": [
                {"id": str(number), "template": template + "{?}", "options": options}
                for number, (template, options) in enumerate(queries)
            ],
        },
    }


class Oracle:
    """The toy's oracle, which remembers the last rows that it gave."""

    def __init__(self, model: ToyModel) -> None:
        self.tokenizer = model.tokenizer
        self.last_row = functools.lru_cache(maxsize=None)(lambda ids: model.oracle(ids)[-1].tolist())


class Expected:
    """Scores of one prompt, worked out one option form at a time from plain sequences."""

    def __init__(self, model: Oracle, content: str, template: str, options: list[str], case_insensitive: bool) -> None:
        encode = model.tokenizer.encode
        self.model = model
        self.prompt = (*(() if model.tokenizer.bos is None else (model.tokenizer.bos,)), *encode(content + template))
        forms: list[dict[tuple[int, ...], float]] = []
        for option in options:
            spellings = [option]
            if case_insensitive:
                core = option.strip()
                spellings += [s + f for s in ("", " ") for f in (core.lower(), core.capitalize(), core.upper())]
            mine = {}
            for spelling in spellings:
                tokens = tuple(encode(spelling))
                apart = encode(content + template + spelling) == [*encode(content + template), *tokens]
                if spelling is option or (len(tokens) == 1 and apart):
                    mine[tokens] = self.probability(tokens)
            forms.append(mine)
        self.mass = [sum(mine.values()) for mine in forms]
        every = {tokens: p for mine in forms for tokens, p in mine.items()}
        disjoint = [p for tokens, p in every.items() if not any(tokens[:stop] in every for stop in range(1, len(tokens)))]
        self.residual = 1 - sum(disjoint)

    def probability(self, tokens: tuple[int, ...]) -> float:
        steps = [self.model.last_row((*self.prompt, *tokens[:step]))[token] for step, token in enumerate(tokens)]
        return float(np.exp(sum(steps)))


def check(
    model: Oracle, response: ScoreResponse, contents: Sequence[str], queries: Queries, case_insensitive: bool = True
) -> None:
    for result, content in zip(response.results, contents, strict=True):
        for answer, (template, options) in zip(result.queries, queries, strict=True):
            (combination,) = answer.combinations
            expected = Expected(model, content, template, options, case_insensitive)
            floor = Expected(model, "", template, options, case_insensitive)
            logs = [option.logprob for option in combination.options]
            assert logs == pytest.approx(np.log(expected.mass), abs=TOLERANCE)
            shares = np.array(expected.mass) / sum(expected.mass)
            assert [option.p for option in combination.options] == pytest.approx(shares, abs=TOLERANCE)
            assert combination.residual == pytest.approx(expected.residual, abs=TOLERANCE)
            floors = np.array(floor.mass) / sum(floor.mass)
            assert [option.floor_p for option in combination.options] == pytest.approx(floors, abs=TOLERANCE)
            assert combination.floor_residual == pytest.approx(floor.residual, abs=TOLERANCE)


@pytest.mark.parametrize(("bos", "window"), [(True, None), (False, None), (True, 7)])
def test_packed_scores_equal_the_oracle_s_for_each_prompt(
    engines: Callable[..., Engine], bos: bool, window: int | None
) -> None:
    engine, model = engines(bos=bos, window=window), Oracle(ToyModel(bos=bos, window=window))

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(texts(12).map(lambda text: text[:90]), min_size=1, max_size=3), QUERIES, st.booleans())
    def holds(contents: list[str], queries: Queries, case_insensitive: bool) -> None:
        try:
            response = engine.score(request(contents, queries, case_insensitive))
        except Rejected as rejected:
            if rejected.code not in ("option_boundary", "duplicate_option", "invalid_field", "option_too_long"):
                raise
            assume(False)
        check(model, response, contents, queries, case_insensitive)

    holds()


def test_the_slot_alone_is_read_right_behind_bos(engines: Callable[..., Engine]) -> None:
    queries = [("", [" yes", " no"])]
    check(Oracle(ToyModel(bos=True)), engines(bos=True).score(request(["", "the gate"], queries)), ["", "the gate"], queries)


@pytest.mark.parametrize("length", [62, 63, 64, 65, 66, 127, 128, 129])
def test_contents_on_both_sides_of_a_tile_s_edge(toy: Engine, length: int) -> None:
    """Case B1, against a run without branches."""
    contents = [" gate" * length, " gate" * length]
    queries = [(" is it", [" north wing", " yes"]), (" Sta", [" yes"])]
    response = toy.score(request(contents, queries))
    check(Oracle(ToyModel()), response, contents, queries)
    assert response.results[0].queries == response.results[1].queries
