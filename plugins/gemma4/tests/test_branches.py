"""Reported of neighbouring systems (transformers PR #46634, Automodel PR #2147): a question that changes another's score."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from spinf_gemma4.stack import Gemma4, load

from spinf_core.engine.probes import Probe, run_probes
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext
from spinf_core.testing.conformance import SIZES

sys.path.insert(0, str(Path(__file__).parent))

import tiny

LONG, SHORT = 70, 9  # the one reaches beyond the window of 24, the other stays within


@pytest.fixture(scope="module", params=tiny.VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gemma4:
    folder = tiny.save(tiny.make(request.param), tmp_path_factory.mktemp(request.param))
    config = json.loads((folder / "config.json").read_text())
    return load(LoadContext(folder=folder, config=config, device=torch.device("cpu"), scheme=Unquantized("fp32")))


def tokens(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 512, count).tolist())


@pytest.mark.parametrize("content", [0, 5, 64, 100])
@pytest.mark.parametrize(("before", "asked"), [(LONG, SHORT), (SHORT, LONG)])
@torch.inference_mode()
def test_a_question_scores_alone_as_behind_a_very_different_one(model: Gemma4, content: int, before: int, asked: int) -> None:
    text, a, b = tokens(1, content), tokens(2, before), tokens(3, asked)
    alone = run_probes(model, [Probe(text, (b,))], SIZES)[0][0]

    same_content = run_probes(model, [Probe(text, (a, b))], SIZES)[0][1]
    other_jobs = run_probes(model, [Probe(tokens(4, 30), (a,)), Probe(text, (b,)), Probe((), (a,))], SIZES)[1][0]

    assert torch.equal(same_content, alone)
    assert torch.equal(other_jobs, alone)


@torch.inference_mode()
def test_a_question_behind_another_content_scores_otherwise(model: Gemma4) -> None:
    """So that the tests above compare what could differ."""
    first, second = run_probes(model, [Probe(tokens(1, 64), (tokens(3, 9),)), Probe(tokens(4, 64), (tokens(3, 9),))], SIZES)

    assert not torch.equal(first, second)
