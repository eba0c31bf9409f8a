"""Linear layers and the activation format that crosses the border between `nn` and a quantization scheme."""

from __future__ import annotations

from typing import Protocol

import attrs
import torch
from torch import Tensor
from torch.nn import functional as F


@attrs.frozen
class InputFormat:
    """The activation format that a linear wants: the norm or activation before it writes this directly.

    Attributes:
        dtype: such as `torch.float8_e4m3fn`.
        scale: values are divided by it, then clamped to the dtype's range; None: written as they are.
    """

    dtype: torch.dtype
    scale: float | None = None

    def write(self, x: Tensor) -> Tensor:
        """`x`, of any float dtype, in this format. Clamped before the cast, so that no overflow becomes NaN."""
        if self.scale is None:
            return x.to(self.dtype)
        largest = torch.finfo(self.dtype).max
        return (x.float() / self.scale).clamp(-largest, largest).to(self.dtype)


class Linear(Protocol):
    """y = x Wᵀ (+ b) for x [M, in] in `input_format` (None: the model's own dtype); gives [M, out] in the model's dtype."""

    input_format: InputFormat | None
    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        ...


class PlainLinear:
    """An unquantized linear: weight [out, in], bias [out] or None."""

    input_format: InputFormat | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]."""
        return F.linear(x, self.weight, self.bias)


def write(x: Tensor, format_: InputFormat | None) -> Tensor:
    """`x` as the next linear wants it."""
    return x if format_ is None else format_.write(x)
