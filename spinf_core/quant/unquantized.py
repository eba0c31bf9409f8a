"""Unquantized weights: `fp32` and `bf16`."""

from __future__ import annotations

import torch

from spinf_core.nn.linear import PlainLinear
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.reading import take_merged
from spinf_core.weights import Weights

LEAST_ROWS = {"cpu": 16, "cuda": 512}
"""cuBLAS chooses other kernels, and with them another order of sums, for products of few rows."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Unquantized:
    """Weights and activations in one float dtype."""

    invariant = True
    numerics = 1

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.dtype = DTYPES[name]
        self.least_rows = LEAST_ROWS[device.type]

    def linear(self, weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], in_features: int) -> PlainLinear:
        """See `Scheme.linear`."""
        return PlainLinear(*take_merged(weights, names, out_features, in_features, self.dtype))


def build(context: SchemeContext) -> Unquantized:
    """The scheme's factory."""
    return Unquantized(context.name, context.device)
