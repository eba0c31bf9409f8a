"""Unquantized weights: `fp32` and `bf16`."""

from __future__ import annotations

import torch

from spinf_core.nn.linear import PlainLinear
from spinf_core.quant.interface import SchemeContext
from spinf_core.weights import Weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Unquantized:
    """Weights and activations in one float dtype."""

    invariant = True
    numerics = 1

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = DTYPES[name]

    def linear(self, weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], in_features: int) -> PlainLinear:
        """See `Scheme.linear`."""
        parts = [
            weights.take(f"{name}.weight", (rows, in_features), self.dtype)
            for name, rows in zip(names, out_features, strict=True)
        ]
        biased = any(weights.has(f"{name}.bias") for name in names)
        biases = [
            weights.take(f"{name}.bias", (rows,), self.dtype) for name, rows in zip(names, out_features, strict=True) if biased
        ]
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        return PlainLinear(weight.contiguous(), torch.cat(biases) if biases else None)


def build(context: SchemeContext) -> Unquantized:
    """The scheme's factory."""
    return Unquantized(context.name)
