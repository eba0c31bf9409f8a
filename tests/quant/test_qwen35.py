"""fp8 through the Qwen3.5 stack: the linears of its layers, and the projections that stay as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from spinf_quant_fp8s.scheme import Row
from spinf_qwen35.stack import Qwen35, load

from spinf_core.engine.probes import random_probe, run_probes
from spinf_core.stack import LoadContext
from spinf_core.testing import conformance

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/qwen35/tests"))

import tiny_qwen as tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Qwen35]:
    model = tiny.make("text")
    folder = tiny.save(model, tmp_path_factory.mktemp("qwen"))
    config = json.loads((folder / "config.json").read_text())
    return model, load(LoadContext(folder=folder, config=config, device=torch.device("cpu"), scheme=Row()))


def test_no_score_depends_on_the_pass(made: tuple[torch.nn.Module, Qwen35]) -> None:
    conformance.check_invariance(made[1])
    conformance.check_past(made[1])


def test_scores_come_near_float32(made: tuple[torch.nn.Module, Qwen35]) -> None:
    oracle, model = tiny.oracle_of(made[0]), made[1]
    probe = random_probe(np.random.default_rng(0), model.vocab_size, 65, 4, 9)
    found = conformance.log_probabilities(model, run_probes(model, [probe], conformance.SIZES)[0])
    for row, branch in zip(found, probe.branches, strict=True):
        assert 0 < (row - oracle([*probe.content, *branch])[-1]).abs().mean() < 0.1
