"""Linear layers and the activation format that crosses the border between `nn` and a quantization scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

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


class Linear(ABC):
    """y = x Wᵀ (+ b) for x [M, in] in `input_format` (None: the model's own dtype); gives [M, out] in the model's dtype."""

    input_format: InputFormat | None = None
    in_features: int
    out_features: int

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """`to` [M, out] + the same."""
        return to + self(x)

    def parts(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """The same, apart for each of the modules whose `sizes` outputs are merged here: [M, size], rows at any one stride."""
        return torch.split(self(x), list(sizes), dim=1)


ROW_BLOCK = 512
"""On CUDA, float products run on blocks of this many rows: cuBLAS chooses its kernel, and with it the order of sums, by how
many rows there are."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ (+ b) for x [M, in] and weight [out, in] of one float dtype; each row's bits from its own values alone."""
    if x.device.type != "cuda":
        return F.linear(x, weight, bias)
    return blocked_product(x, weight, bias)


def blocked_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`product` by blocks of `ROW_BLOCK` rows, the last one filled up with zeros."""
    rows = len(x)
    out = x.new_empty(-(-rows // ROW_BLOCK) * ROW_BLOCK, len(weight))
    for first in range(0, rows, ROW_BLOCK):
        block = x[first : first + ROW_BLOCK]
        if len(block) < ROW_BLOCK:
            block = F.pad(block, (0, 0, 0, ROW_BLOCK - len(block)))
        into = out[first : first + ROW_BLOCK]
        if bias is None:
            torch.mm(block, weight.T, out=into)
        else:
            torch.addmm(bias, block, weight.T, out=into)
    return out[:rows]


class PlainLinear(Linear):
    """An unquantized linear: weight [out, in], bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]."""
        return product(x, self.weight, self.bias)


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x [N, …] at some rows [R], whatever its dtype; torch selects no rows of fp8."""
    if x.dtype.itemsize == 1:
        return x.view(torch.uint8).index_select(0, rows).view(x.dtype)
    return x.index_select(0, rows)


def write(x: Tensor, format_: InputFormat | None) -> Tensor:
    """`x` as the next linear wants it."""
    return x if format_ is None else format_.write(x)
