"""Linears with weights in int8, against float products of the numbers that int8 stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spinf_core.quant.int8 import Int8Linear, build, quantize_rows
from spinf_core.quant.interface import SchemeContext
from spinf_core.weights import Weights

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(24, 64, generator=GENERATOR)
BIAS = torch.randn(24, generator=GENERATOR)
X = torch.randn(40, 64, generator=GENERATOR)
NAMES = pytest.mark.parametrize("name", ["w8a16", "w8a8"])


def linear(name: str) -> Int8Linear:
    return Int8Linear(WEIGHT, BIAS, torch.float32, int8_inputs=name == "w8a8")


def test_a_row_is_scaled_by_its_largest_number():
    quantized, scale = quantize_rows(torch.tensor([[1.27, -0.63, 0.004], [0.0, 0.0, 0.0]]))
    assert quantized.tolist() == [[127, -63, 0], [0, 0, 0]]
    torch.testing.assert_close(scale, torch.tensor([[0.01], [1.0]]))


def test_a_weight_is_off_by_half_a_step_at_most():
    quantized, scale = quantize_rows(WEIGHT)
    assert ((quantized * scale - WEIGHT).abs() <= scale / 2 * 1.001).all()


def test_w8a16_is_the_product_with_the_rounded_weight():
    quantized, scale = quantize_rows(WEIGHT)
    torch.testing.assert_close(linear("w8a16")(X), X @ (quantized * scale).T + BIAS)


def test_w8a8_is_the_product_of_the_rounded_numbers():
    (weight, weight_scale), (x, x_scale) = quantize_rows(WEIGHT), quantize_rows(X)
    torch.testing.assert_close(linear("w8a8")(X), (x * x_scale) @ (weight * weight_scale).T + BIAS)


def test_w8a8_rows_are_the_same_bits_alone_and_together():
    together = linear("w8a8")(X)
    assert all(torch.equal(linear("w8a8")(X[row : row + 1])[0], together[row]) for row in range(len(X)))


@NAMES
def test_the_scheme_makes_one_linear_of_weights_laid_one_under_another(tmp_path: Path, name: str):
    tensors = {"a.weight": WEIGHT[:8], "b.weight": WEIGHT[8:], "a.bias": BIAS[:8], "b.bias": BIAS[8:]}
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / "model.safetensors")
    scheme = build(SchemeContext(name=name, device=torch.device("cpu")))
    made = scheme.linear(Weights(tmp_path), ("a", "b"), (8, 16), 64)
    assert torch.equal(made(X), linear(name)(X))
    assert (made.in_features, made.out_features, scheme.name) == (64, 24, name)
