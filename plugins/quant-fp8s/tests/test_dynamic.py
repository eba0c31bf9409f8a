"""`fp8row` and `fp8`: scales found at load for weights, and in each pass for activations."""

from __future__ import annotations

import pytest
import torch
from spinf_quant_fp8s.linears import row_scales
from spinf_quant_fp8s.products import FP8
from spinf_quant_fp8s.scheme import Dynamic, Row
from torch import Tensor

from spinf_core.quant.interface import Scheme

IN, OUT = 32, 16
SCHEMES = [Row(), Dynamic()]


def names(scheme: Scheme) -> str:
    return scheme.name


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """Numbers rounded to fp8 and back, in float64."""
    return (x.float() / scale).to(FP8).double() * scale.double()


def test_fp8row_scales_each_token_and_each_channel_by_its_own_largest_value(checkpoint) -> None:
    weight = torch.randn(OUT, IN) * torch.logspace(-3, 3, OUT)[:, None]
    x = (torch.randn(5, IN) * torch.logspace(-3, 3, 5)[:, None]).to(torch.bfloat16)

    found = Row().linear(checkpoint({"a.weight": weight}), ("a",), (OUT,), IN)(x)

    by_channel, by_token = weight.abs().amax(1, keepdim=True) / 448, x.float().abs().amax(1, keepdim=True) / 448
    wanted = rounded(x, by_token) @ rounded(weight, by_channel).T
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8 * 1.01, atol=1e-5)


def test_fp8_scales_all_tokens_and_all_channels_by_one_number_each(checkpoint) -> None:
    weight, x = torch.randn(OUT, IN), torch.randn(5, IN).to(torch.bfloat16)

    found = Dynamic().linear(checkpoint({"a.weight": weight}), ("a",), (OUT,), IN)(x)

    wanted = rounded(x, x.float().abs().max() / 448) @ rounded(weight, weight.abs().max() / 448).T
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8 * 1.01, atol=1e-5)


def test_a_row_of_fp8row_has_the_same_bits_alone_as_among_others(checkpoint) -> None:
    linear = Row().linear(checkpoint({"a.weight": torch.randn(OUT, IN)}), ("a",), (OUT,), IN)
    x = torch.randn(6, IN).to(torch.bfloat16)
    x[3] *= 1000

    among = linear(x)

    for number in range(6):
        assert torch.equal(linear(x[number : number + 1]), among[number : number + 1])


def test_a_row_of_fp8_depends_on_the_others_as_its_record_says(checkpoint) -> None:
    linear = Dynamic().linear(checkpoint({"a.weight": torch.randn(OUT, IN)}), ("a",), (OUT,), IN)
    x = torch.randn(6, IN).to(torch.bfloat16)
    x[3] *= 1000

    assert not Dynamic.invariant
    assert not torch.equal(linear(x[:1]), linear(x)[:1])


@pytest.mark.parametrize("scheme", SCHEMES, ids=names)
def test_a_bias_is_added(checkpoint, scheme: Scheme) -> None:
    weight, bias = torch.randn(OUT, IN), torch.randn(OUT)
    x = torch.randn(5, IN).to(torch.bfloat16)

    biased = scheme.linear(checkpoint({"a.weight": weight, "a.bias": bias}), ("a",), (OUT,), IN)(x)
    bare = scheme.linear(checkpoint({"a.weight": weight}), ("a",), (OUT,), IN)(x)

    assert torch.equal(biased, bare + bias.to(torch.bfloat16))


@pytest.mark.parametrize("scheme", SCHEMES, ids=names)
def test_zeros_give_zeros(checkpoint, scheme: Scheme) -> None:
    weight = torch.randn(OUT, IN)
    weight[0] = 0

    linear = scheme.linear(checkpoint({"a.weight": weight}), ("a",), (OUT,), IN)

    assert torch.equal(linear(torch.zeros(2, IN, dtype=torch.bfloat16)), torch.zeros(2, OUT, dtype=torch.bfloat16))
    assert torch.equal(linear(torch.ones(1, IN, dtype=torch.bfloat16))[:, 0], torch.zeros(1, dtype=torch.bfloat16))


@pytest.mark.parametrize("scheme", SCHEMES, ids=names)
def test_an_fp8_static_checkpoint_loads_as_its_dequantized_weights_do(checkpoint, scheme: Scheme) -> None:
    stored, scale = torch.randn(OUT, IN).mul(60).to(FP8), torch.tensor([0.01])
    static = {"a.weight": stored, "a.weight_scale": scale, "a.input_scale": torch.tensor([0.03])}
    x = torch.randn(5, IN).to(torch.bfloat16)

    found = scheme.linear(checkpoint(static), ("a",), (OUT,), IN)(x)
    plain = scheme.linear(checkpoint({"a.weight": stored.float() * scale}), ("a",), (OUT,), IN)(x)

    assert torch.equal(found, plain)


def test_a_row_too_small_for_a_scale_has_one_that_divides() -> None:
    assert row_scales(torch.tensor([[1e-45, 0.0]])).item() == 1.0
