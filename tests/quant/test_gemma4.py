"""Every scheme through a whole model: how near it comes to float32, and that no row depends on another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from spinf_gemma4.stack import load
from spinf_quant_fp8s.scheme import Dynamic, Row, Static

from spinf_core.engine.probes import run_probes
from spinf_core.quant.int8 import Int8
from spinf_core.quant.interface import Scheme
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext, Model
from spinf_core.testing import conformance

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/gemma4/tests"))

import check
import tiny

CPU = torch.device("cpu")
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "fp8s": lambda: Static(None),
    "fp8row": Row,
    "w8a16": lambda: Int8("w8a16", CPU),
    "w8a8": lambda: Int8("w8a8", CPU),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plain checkpoint, and an fp8-static copy of it."""
    plain, static = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("static")
    tiny.save(tiny.make("unified"), plain)
    check.write_fp8_static(plain, static)
    return plain, static


def load_with(folder: Path, scheme: Scheme) -> Model:
    config = json.loads((folder / "config.json").read_text())
    return load(LoadContext(folder=folder, config=config, device=CPU, scheme=scheme))


@torch.inference_mode()
def log_probabilities(model: Model) -> list[torch.Tensor]:
    rows = run_probes(model, conformance.probes(model), conformance.SIZES)
    return [conformance.log_probabilities(model, each) for each in rows]


@pytest.fixture(scope="module")
def float32(folders: tuple[Path, Path]) -> list[torch.Tensor]:
    return log_probabilities(load_with(folders[0], Unquantized("fp32")))


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The mean difference over tokens within 10 of the likeliest."""
    return torch.cat([(a - b).abs()[b > b.max() - 10] for a, b in zip(found, wanted, strict=True)]).mean().item()


@pytest.mark.parametrize(("name", "bound"), [("fp8s", 0.05), ("fp8row", 0.05), ("w8a16", 0.01), ("w8a8", 0.015)])
def test_a_scheme_comes_near_float32(folders: tuple[Path, Path], float32: list[torch.Tensor], name: str, bound: float) -> None:
    model = load_with(folders[name == "fp8s"], SCHEMES[name]())

    assert 0 < distance(log_probabilities(model), float32) < bound


@pytest.mark.parametrize("name", SCHEMES)
def test_no_score_depends_on_the_pass(folders: tuple[Path, Path], name: str) -> None:
    conformance.check_invariance(load_with(folders[name == "fp8s"], SCHEMES[name]()))


def test_with_fp8_scores_depend_on_the_pass(folders: tuple[Path, Path]) -> None:
    with pytest.raises(AssertionError, match="changes when packed"):
        conformance.check_invariance(load_with(folders[0], Dynamic()))
