"""The default model's scores equal transformers' own of every full prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from spinf_core.checkpoints import Checkpoint
from spinf_core.engine.engine import Engine
from spinf_core.errors import Rejected

from .prompts import CONTENTS, QUESTIONS, Oracle, Question, Scored

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def engine(engine_of: Callable[[str], Engine]) -> Iterator[Engine]:
    with engine_of("fp32") as engine:
        yield engine


@pytest.fixture(scope="module")
def oracle(weights: Checkpoint) -> Oracle:
    return Oracle(weights.folder)


def askable(oracle: Oracle, content: str) -> list[Question]:
    """The questions that may be asked of a content: there is something to read, and every option stands apart from it."""
    return [
        (template, options)
        for template, options in QUESTIONS
        if content + template and all(oracle.joins(content + template, option) for option in options)
    ]


def sampled(oracle: Oracle, content: str) -> list[Question]:
    """Those that are scored: of a long content, for which the oracle takes long, every third."""
    return askable(oracle, content)[:: 3 if len(content) > 5000 else 1]


def body(content: str, questions: Sequence[Question], *, floors: bool = False) -> dict[str, Any]:
    queries = [
        {"id": str(n), "template": text + "{?}", "options": list(options)} for n, (text, options) in enumerate(questions)
    ]
    scoring = {"queries": queries, "empty_floor": floors}
    return {"messages": [{"role": "user", "content": content}], "scoring": scoring}


def scored(engine: Engine, content: str, questions: Sequence[Question]) -> list[Scored]:
    combinations = [query.combinations[0] for query in engine.score(body(content, questions)).results[0].queries]
    return [
        Scored(tuple(o.logprob for o in each.options), tuple(o.p for o in each.options), each.residual) for each in combinations
    ]


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_scores_equal_those_of_every_full_prompt(engine: Engine, oracle: Oracle, content: str) -> None:
    questions = sampled(oracle, content)
    for question, ours, theirs in zip(
        questions, scored(engine, content, questions), oracle.score(content, questions), strict=True
    ):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4, rel=0), question
        assert ours.shares == pytest.approx(theirs.shares, abs=1e-4, rel=0), question
        assert ours.residual == pytest.approx(theirs.residual, abs=1e-4, rel=0), question


def test_the_prompts_are_many_and_meet_their_contents_in_every_way(oracle: Oracle) -> None:
    """200 prompts and more, and a good part of them does not tokenize as content and template do apart."""
    prompts = [(content, template) for content in CONTENTS.values() for template, _ in sampled(oracle, content)]
    merging = [(c, t) for c, t in prompts if oracle.encode(c + t) != oracle.encode(c) + oracle.encode(t)]
    assert len(prompts) >= 200
    assert len(merging) >= 15
    assert max(len(oracle.encode(content)) for content in CONTENTS.values()) > 1500


def test_options_that_merge_with_a_prompt_are_refused_wherever_they_do(engine: Engine, oracle: Oracle) -> None:
    refused = [
        (content, question)
        for content in CONTENTS.values()
        for question in QUESTIONS
        if content + question[0] and question not in askable(oracle, content)
    ]
    assert refused
    for content, question in refused:
        with pytest.raises(Rejected) as caught:
            engine.score(body(content, [question]))
        assert caught.value.code == "option_boundary", (content, question)


def test_a_floor_is_the_score_behind_no_content(engine: Engine, oracle: Oracle) -> None:
    questions = askable(oracle, "")
    answer = engine.score(body("Anything at all.", questions, floors=True)).results[0]
    for question, query, bare in zip(questions, answer.queries, oracle.score("", questions), strict=True):
        combination = query.combinations[0]
        assert [option.floor_p for option in combination.options] == pytest.approx(bare.shares, abs=1e-4), question
        assert combination.floor_residual == pytest.approx(bare.residual, abs=1e-4), question


def test_bf16_is_as_near_as_transformers_own(engine_of: Callable[[str], Engine], weights: Checkpoint, oracle: Oracle) -> None:
    """Shares within 5e-2 of float32's; log-probabilities, which a format of 8 bits moves by more where they are very low, no
    further off on average than transformers' own in bf16."""
    theirs = Oracle(weights.folder, torch.bfloat16)
    errors: list[tuple[float, float]] = []
    with engine_of("bf16") as engine:
        for name in ("prose", "half a word", "digits", "JSON", "Chinese"):
            content = CONTENTS[name]
            questions = askable(oracle, content)
            exact = oracle.score(content, questions)
            for question, ours, other, best in zip(
                questions, scored(engine, content, questions), theirs.score(content, questions), exact, strict=True
            ):
                assert ours.shares == pytest.approx(best.shares, abs=5e-2, rel=0), question
                for a, b, c in zip(ours.logprobs, other.logprobs, best.logprobs, strict=True):
                    errors.append((abs(a - c), abs(b - c)))
    our_mean, their_mean = (sum(column) / len(errors) for column in zip(*errors, strict=True))
    assert our_mean < 1.25 * their_mean
