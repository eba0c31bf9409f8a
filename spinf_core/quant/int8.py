"""Weights in int8, one scale per output channel: `w8a16` with float activations, `w8a8` with int8 activations per row.

Symmetric rounding to nearest: w ≈ s · round(w / s), s = max |w| / 127 over a channel (Jacob et al. 2018, section 2.1, without
the zero point). Integer sums are exact, so `w8a8` rows do not depend on how a product is blocked.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.nn.linear import Linear, product
from spinf_core.nn.packed import native_bf16
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.reading import take_merged
from spinf_core.weights import Weights

LARGEST = 127
BLOCK = 1 << 19  # weights that are made floats at a time on a CPU, few enough for its cache
INT8_ROWS = 32  # torch's int8 product on CUDA takes more than 16


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, K] to int8 [M, K] and float32 scales [M, 1]; where that would be zero it is 1."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (wide / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


class Int8Linear(Linear):
    """A linear whose weight is kept in int8.

    Args:
        weight: [out, in] in float. bias: [out] or None.
        dtype: of inputs and outputs.
        int8_inputs: whether inputs are quantized too, each row by its own largest value.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, int8_inputs: bool) -> None:
        self.weight, scale = quantize_rows(weight)
        self.scale = scale.view(-1)
        self.bias = bias
        self.dtype = dtype
        self.int8_inputs = int8_inputs
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]."""
        found = self._int8_product(x) if self.int8_inputs else self._float_product(x)
        if self.bias is not None:
            found = found + self.bias.float()
        return found.to(self.dtype)

    def _float_product(self, x: Tensor) -> Tensor:
        if x.device.type == "cuda":
            return product(x, self.weight.to(x.dtype)).float() * self.scale
        found = torch.empty(len(x), self.out_features, dtype=torch.float32)
        step = max(1, BLOCK // self.in_features)
        for first in range(0, self.out_features, step):
            some = slice(first, first + step)
            torch.mul(product(x, self.weight[some].to(x.dtype)).float(), self.scale[some], out=found[:, some])
        return found

    def _int8_product(self, x: Tensor) -> Tensor:
        rows = len(x)
        quantized, scale = quantize_rows(x)
        if rows < INT8_ROWS:
            quantized = F.pad(quantized, (0, 0, 0, INT8_ROWS - rows))
        sums = torch._int_mm(quantized, self.weight.T)[:rows]
        return sums.float() * scale * self.scale


class Int8:
    """The schemes `w8a16` and `w8a8`."""

    invariant = True
    numerics = 2

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        # Without bfloat16 products a CPU would round more and run no faster.
        self.dtype = torch.bfloat16 if device.type == "cuda" or native_bf16() else torch.float32

    def linear(self, weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], in_features: int) -> Int8Linear:
        """See `Scheme.linear`."""
        weight, bias = take_merged(weights, names, out_features, in_features, torch.float32)
        return Int8Linear(weight, bias, self.dtype, int8_inputs=self.name == "w8a8")


def build(context: SchemeContext) -> Int8:
    """The schemes' factory."""
    return Int8(context.name, context.device)
