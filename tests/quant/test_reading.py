"""Checkpoints whose weights are fp8 with static scales, and those in layouts that are not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spinf_core.errors import SetupError
from spinf_core.quant.reading import has_static_fp8, take_merged, take_static_fp8
from spinf_core.weights import Weights

STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
STORED = torch.tensor([[1.0, -2.0], [448.0, 0.5]]).to(torch.float8_e4m3fn)


def quantized(activations: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"weights": STATIC, "input_activations": activations}}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}


def weights(folder: Path, **changes: torch.Tensor) -> Weights:
    tensors = {"a.weight": STORED, "a.weight_scale": torch.tensor([0.5]), "a.input_scale": torch.tensor([0.25])}
    save_file({**tensors, **changes}, folder / "model.safetensors")
    return Weights(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, False),
        ({"quantization_config": quantized(STATIC)}, True),
        ({"text_config": {"quantization_config": quantized(STATIC)}}, True),
    ],
    ids=["plain", "static", "of the text model"],
)
def test_a_config_tells_whether_scales_are_static(config: dict[str, Any], expected: bool):
    assert has_static_fp8(config) is expected


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (quantized({**STATIC, "dynamic": True}), r"input_activations\.dynamic is True, not False"),
        ({"quant_method": "gptq"}, r"quantized by 'gptq'"),
    ],
)
def test_another_layout_is_refused_by_name(found: dict[str, Any], named: str):
    with pytest.raises(SetupError, match=named):
        has_static_fp8({"quantization_config": found})


def test_a_weight_in_float_is_the_stored_numbers_times_their_scale(tmp_path: Path):
    weight, bias = take_merged(weights(tmp_path), ("a",), (2,), 2, torch.float32)
    assert weight.tolist() == [[0.5, -1.0], [224.0, 0.25]]
    assert bias is None


def test_a_static_weight_is_taken_as_it_is_stored(tmp_path: Path):
    found = take_static_fp8(weights(tmp_path), "a", (2, 2))
    assert torch.equal(found.weight.float(), STORED.float())
    assert (found.weight_scale, found.input_scale) == (0.5, 0.25)


@pytest.mark.parametrize("scale", [[0.0], [-1.0], [float("nan")], [1.0, 1.0]])
def test_a_scale_that_cannot_divide_is_refused_by_name(tmp_path: Path, scale: list[float]):
    with pytest.raises(SetupError, match=r"scale a\.input_scale"):
        take_static_fp8(weights(tmp_path, **{"a.input_scale": torch.tensor(scale)}), "a", (2, 2))


def test_a_scale_beside_a_plain_weight_is_refused(tmp_path: Path):
    with pytest.raises(SetupError, match=r"a\.weight has a scale but is torch\.float32"):
        take_static_fp8(weights(tmp_path, **{"a.weight": torch.ones(2, 2)}), "a", (2, 2))
