"""`w8a16` and `w8a8`: int8 weights per channel, int8 activations per row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spinf_core.quant import int8
from spinf_core.quant.int8 import Int8Linear, build, quantize_rows
from spinf_core.quant.interface import SchemeContext
from spinf_core.weights import Weights

CPU = torch.device("cpu")


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None, *, int8_inputs: bool) -> Int8Linear:
    return Int8Linear(weight, bias, torch.float32, int8_inputs)


def test_a_row_is_rounded_to_the_nearest_step_of_its_largest_value() -> None:
    # Steps of 2 and of 0.01. Halves go to the even number: 0.5 and 1.5 steps become 0 and 2.
    x = torch.tensor([[254.0, -254.0, 1.0, 3.0, 2.9], [1.27, 0.014, -0.016, 0.0, -1.27]])

    values, scale = quantize_rows(x)

    assert values.tolist() == [[127, -127, 0, 2, 1], [127, 1, -2, 0, -127]]
    torch.testing.assert_close(scale, torch.tensor([[2.0], [0.01]]))


@pytest.mark.parametrize("largest", [0.0, 1e-45])
def test_a_row_of_zeros_or_next_to_it_divides_by_one(largest: float) -> None:
    values, scale = quantize_rows(torch.tensor([[largest, 0.0]]))

    assert (values.tolist(), scale.tolist()) == ([[0, 0]], [[1.0]])


def test_w8a16_by_hand() -> None:
    # The weight's step is 1/127, and 0.5 is 63.5 steps, which round to 64.
    weight, bias = torch.tensor([[1.0, -0.5], [0.0, 0.0]]), torch.tensor([0.25, 3.0])

    found = linear(weight, bias, int8_inputs=False)(torch.tensor([[2.0, 1.0]]))

    torch.testing.assert_close(found, torch.tensor([[2 - 64 / 127 + 0.25, 3.0]]))


def test_w8a8_by_hand() -> None:
    # The input's step is 2/127, so 1.0 too is 63.5 steps.
    weight, bias = torch.tensor([[1.0, -0.5], [0.0, 0.0]]), torch.tensor([0.25, 3.0])

    found = linear(weight, bias, int8_inputs=True)(torch.tensor([[2.0, 1.0]]))

    torch.testing.assert_close(found, torch.tensor([[(127 * 127 - 64 * 64) / 127 * 2 / 127 + 0.25, 3.0]]))


@pytest.mark.parametrize("int8_inputs", [False, True])
def test_the_error_stays_within_half_a_step_of_every_number(int8_inputs: bool) -> None:
    weight, x = torch.randn(24, 64), torch.randn(10, 64)

    found = linear(weight, int8_inputs=int8_inputs)(x)

    error = (found.double() - x.double() @ weight.double().T).abs()
    half_w = weight.abs().amax(1).double() / 254
    half_x = x.abs().amax(1, keepdim=True).double() / 254 if int8_inputs else torch.zeros(10, 1, dtype=torch.float64)
    bound = x.abs().double().sum(1, keepdim=True) * half_w + half_x * (weight.abs().double().sum(1) + 64 * half_w)
    assert (error <= bound + 1e-5).all()
    assert error.max() > 1e-3  # it is quantized


# The inputs of w8a16 go through a float product, which an engine runs on multiples of 16 rows alone.
@pytest.mark.parametrize(
    ("int8_inputs", "rows"), [(False, 16), (False, 32), (True, 1), (True, 2), (True, 31), (True, 32), (True, 33)]
)
def test_a_row_has_the_same_bits_alone_as_among_others(int8_inputs: bool, rows: int) -> None:
    made = linear(torch.randn(24, 64), torch.randn(24), int8_inputs=int8_inputs)
    x = torch.randn(48, 64) * torch.logspace(-3, 3, 48)[:, None]

    among = made(x)

    assert torch.equal(made(x[7 : 7 + rows]), among[7 : 7 + rows])


@pytest.mark.parametrize("name", ["w8a16", "w8a8"])
def test_merged_weights_give_the_outputs_of_each(tmp_path: Path, name: str) -> None:
    tensors = {
        "a.weight": torch.randn(3, 8),
        "b.weight": 100 * torch.randn(5, 8),
        "a.bias": torch.ones(3),
        "b.bias": torch.ones(5),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    scheme, weights, x = build(SchemeContext(name=name, device=CPU)), Weights(tmp_path), torch.randn(4, 8)

    merged = scheme.linear(weights, ("a", "b"), (3, 5), 8)(x)

    assert torch.equal(
        merged, torch.cat([scheme.linear(weights, (n,), (rows,), 8)(x) for n, rows in (("a", 3), ("b", 5))], dim=1)
    )


@pytest.mark.parametrize(
    ("device", "native", "dtype"),
    [("cpu", False, torch.float32), ("cpu", True, torch.bfloat16), ("cuda", False, torch.bfloat16)],
)
def test_activations_are_bfloat16_where_its_products_are_native(
    monkeypatch: pytest.MonkeyPatch, device: str, native: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(int8, "native_bf16", lambda: native)
    assert build(SchemeContext(name="w8a16", device=torch.device(device))).dtype == dtype


def test_on_a_cpu_a_large_weight_becomes_floats_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made = linear(torch.randn(24, 64), torch.randn(24), int8_inputs=False)
    x = torch.randn(32, 64)
    whole = made(x)

    monkeypatch.setattr(int8, "BLOCK", 7 * 64)

    torch.testing.assert_close(made(x), whole, rtol=1e-6, atol=1e-5)
