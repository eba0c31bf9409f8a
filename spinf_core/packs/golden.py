"""Golden fixtures: answers with what a pack must make of them, kept beside the pack."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spinf_core.packs.evaluate import Evaluator, Override
from spinf_core.packs.file import Pack

TOLERANCE = 1e-6


def check_golden(pack: Pack, path: Path) -> list[str]:
    """The problems of a pack's golden fixture: what cannot be read, and every number that comes out otherwise.

    The file is `{"cases": [{"answers": [{"query", "F", "p": […]}], "decision": {overrides}, "expected": {"categories",
    "decision"}}]}`. A file without `cases` is another tool's and is not looked at.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        cases = value.get("cases") if isinstance(value, Mapping) else None
        if not isinstance(cases, list):
            return []
        evaluator = Evaluator(pack)
        return [problem for number, case in enumerate(cases) for problem in _check_case(evaluator, case, f"case {number}")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"cannot be checked: {type(error).__name__}: {error}"]


def _check_case(evaluator: Evaluator, case: Mapping[str, Any], where: str) -> Iterator[str]:
    answers = {(answer["query"], answer.get("F")): answer["p"] for answer in case["answers"]}
    decision = case.get("decision") or {}
    critical = decision.get("critical")
    override = Override(**{**decision, "critical": None if critical is None else tuple(critical)})
    found = evaluator.evaluate(answers, override)
    categories = {
        name: {"score": each.score, "percentile": each.percentile, "flagged": each.flagged}
        for name, each in found.categories.items()
    }
    expected = case["expected"]
    yield from _differences(categories, expected["categories"], f"{where}: categories")
    yield from _differences(dict(found.decision), expected["decision"], f"{where}: decision")


def _differences(found: Any, expected: Any, where: str) -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in dict.fromkeys((*expected, *found)):
            yield from _differences(found.get(name), expected.get(name), f"{where}.{name}")
    elif isinstance(found, float) and isinstance(expected, int | float):
        if not math.isclose(found, expected, rel_tol=0, abs_tol=TOLERANCE):
            yield f"{where} is {found:.6f}, and {expected:.6f} was expected"
    elif found != expected:
        yield f"{where} is {found!r}, and {expected!r} was expected"
