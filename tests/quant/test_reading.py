"""Weights out of plain and of fp8-static checkpoints, and the layouts that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from spinf_core.errors import SetupError
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.reading import has_static_fp8, take_bias, take_merged, take_static_fp8, take_weight
from spinf_core.quant.unquantized import DTYPES, build
from spinf_core.weights import Weights

STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


def checkpoint(folder: Path, **tensors: Tensor) -> Weights:
    """Tensors by name, `__` for the dots."""
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return Weights(folder)


def fp8(rows: int) -> Tensor:
    return torch.randn(rows, 8).mul(60).to(torch.float8_e4m3fn)


def quantized(weights: dict[str, Any] = STATIC, inputs: dict[str, Any] | None = STATIC, **changes: Any) -> dict[str, Any]:
    groups = {"group_0": {"weights": weights, "input_activations": inputs}}
    made = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    return {"quantization_config": made | changes}


# Layouts


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"text_config": None}, {"text_config": {}}])
def test_a_config_that_says_nothing_is_plain(config: dict[str, Any]) -> None:
    assert not has_static_fp8(config)


@pytest.mark.parametrize("config", [quantized(), {"text_config": quantized()}])
def test_static_scales_per_tensor_are_known_wherever_the_config_says_so(config: dict[str, Any]) -> None:
    assert has_static_fp8(config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (quantized(quant_method="gptq", format=None), "'gptq'"),
        (quantized(format="pack-quantized"), "'pack-quantized'"),
        (quantized(config_groups={}), "'float-quantized'"),
        ({"quantization_config": {"load_in_4bit": True}}, "None"),
        (quantized(weights=STATIC | {"num_bits": 4}), "weights.num_bits is 4, not 8"),
        (quantized(weights=STATIC | {"strategy": "channel"}), "weights.strategy is 'channel', not 'tensor'"),
        (quantized(inputs=STATIC | {"dynamic": True}), "input_activations.dynamic is True, not False"),
        (quantized(inputs=None), "input_activations.num_bits is None, not 8"),
    ],
)
def test_another_layout_is_refused_by_its_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(SetupError) as caught:
        has_static_fp8(config)
    assert named in str(caught.value)


# Weights


def test_the_tensors_that_are_there_decide_not_the_config(tmp_path: Path) -> None:
    stored, plain = fp8(4), torch.randn(4, 8)
    scales = {"a__weight_scale": torch.tensor([0.5]), "a__input_scale": torch.tensor([0.1])}
    weights = checkpoint(tmp_path, a__weight=stored, b__weight=plain, **scales)

    assert torch.equal(take_weight(weights, "a", (4, 8), torch.float32), stored.float() * 0.5)
    assert torch.equal(take_weight(weights, "b", (4, 8), torch.float32), plain)
    weights.finish()  # the input's scale too has been taken


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_an_fp8_static_checkpoint_loads_unquantized(tmp_path: Path, name: str) -> None:
    stored = fp8(4)
    scales = {"a__weight_scale": torch.tensor([0.37]), "a__input_scale": torch.tensor([0.1])}
    weights = checkpoint(tmp_path, a__weight=stored, **scales)

    linear = build(SchemeContext(name=name, device=torch.device("cpu"))).linear(weights, ("a",), (4,), 8)

    assert torch.equal(linear.weight, (stored.double() * torch.tensor(0.37).double()).float().to(DTYPES[name]))


def test_merged_weights_lie_one_under_another_quantized_or_not(tmp_path: Path) -> None:
    stored, plain = fp8(4), torch.randn(3, 8)
    scales = {"a__weight_scale": torch.tensor([0.5]), "a__input_scale": torch.tensor([0.1])}
    weights = checkpoint(tmp_path, a__weight=stored, b__weight=plain, **scales)

    weight, bias = take_merged(weights, ("a", "b"), (4, 3), 8, torch.float32)

    assert torch.equal(weight, torch.cat([stored.float() * 0.5, plain]))
    assert weight.is_contiguous()
    assert bias is None


def test_biases_lie_one_behind_another(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path, a__bias=torch.tensor([1.0, 2.0]), b__bias=torch.tensor([3.0]))

    bias = take_bias(weights, ("a", "b"), (2, 1), torch.bfloat16)

    assert bias is not None
    assert (bias.tolist(), bias.dtype) == ([1.0, 2.0, 3.0], torch.bfloat16)


@pytest.mark.parametrize(("held", "missing"), [("a", "b"), ("b", "a")])
def test_a_bias_on_some_only_is_refused_by_the_name_of_the_missing_one(tmp_path: Path, held: str, missing: str) -> None:
    weights = checkpoint(tmp_path, **{f"{held}__bias": torch.zeros(2)})

    with pytest.raises(SetupError, match=rf"no tensor {missing}\.bias"):
        take_bias(weights, ("a", "b"), (2, 2), torch.float32)


def test_a_weight_with_a_scale_that_is_not_fp8_is_refused_by_name(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path, a__weight=torch.zeros(4, 8, dtype=torch.int8), a__weight_scale=torch.tensor([0.5]))

    with pytest.raises(SetupError, match=r"a\.weight has a scale but is torch\.int8"):
        take_weight(weights, "a", (4, 8), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32])
def test_a_quantized_weight_without_its_scale_is_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = checkpoint(tmp_path, a__weight=torch.ones(4, 8).to(dtype))

    with pytest.raises(SetupError, match=rf"a\.weight is {dtype} and there is no tensor a\.weight_scale; .*fetch it again"):
        take_weight(weights, "a", (4, 8), torch.bfloat16)


def test_a_scale_per_channel_is_refused_by_name(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path, a__weight=fp8(4), a__weight_scale=torch.ones(4, 1), a__input_scale=torch.ones(1))

    with pytest.raises(SetupError, match=r"a\.weight_scale has shape \[4, 1\]; one number"):
        take_static_fp8(weights, "a", (4, 8))


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_a_scale_that_cannot_divide_is_refused_whatever_the_scheme(tmp_path: Path, value: float) -> None:
    scales = {"a__weight_scale": torch.tensor([value]), "a__input_scale": torch.ones(1)}
    weights = checkpoint(tmp_path, a__weight=fp8(4), **scales)

    with pytest.raises(SetupError, match=rf"scale a\.weight_scale is {value:g}, .*fetch it again"):
        take_weight(weights, "a", (4, 8), torch.float32)
