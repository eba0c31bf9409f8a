"""The evaluator agrees with spinf-client's, an implementation of its own, on generated packs and answers."""

from __future__ import annotations

from typing import Any

import pytest
from spinf_client import packs as oracle

from spinf_core.packs.evaluate import Evaluation, Evaluator, Override
from spinf_core.packs.file import pack_of
from spinf_core.packs.validate import problems

from .strategies import Answers, random_answers, random_override, random_pack

CASES = 2500


def evaluated(raw: dict[str, Any], answers: Answers, **override: Any) -> Evaluation:
    critical = override.pop("critical", None)
    how = Override(**override, critical=None if critical is None else tuple(critical))
    return Evaluator(pack_of("pack", raw)).evaluate(answers, how)


def assert_equal(ours: Evaluation, theirs: dict[str, Any]) -> None:
    categories = {
        name: {"score": each.score, "percentile": each.percentile, "flagged": each.flagged}
        for name, each in ours.categories.items()
    }
    assert list(categories) == list(theirs["categories"])
    for name, category in theirs["categories"].items():
        assert categories[name] == pytest.approx(category, abs=1e-6), name
    assert list(ours.decision) == list(theirs["decision"])
    for name, value in theirs["decision"].items():
        found = ours.decision[name]
        assert found == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), name


@pytest.mark.parametrize("block", range(10))
def test_generated_packs_agree_with_the_oracle(block: int) -> None:
    for seed in range(block * CASES // 10, (block + 1) * CASES // 10):
        raw = random_pack(seed)
        assert problems(raw) == []
        answers = random_answers(seed, raw)
        override = random_override(seed, raw)
        assert_equal(evaluated(raw, answers), oracle.evaluate(raw, answers))
        assert_equal(evaluated(raw, answers, **override), oracle.evaluate(raw, answers, **override))
