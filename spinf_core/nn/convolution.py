"""The short causal convolution of recurrent layers, along paths: a row's taps are the rows before it on its own path."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spinf_core.nn.activation import silu
from spinf_core.nn.layout import TreeLayout
from spinf_core.stack import IntArray

NORM_EPS = 1e-6


@attrs.frozen(eq=False)
class PathTaps:
    """Where the convolutions of one pass find their inputs.

    Attributes:
        index: [N, width] the inputs before each row, nearest last: first those of the R kept rows of the past [R · width], then
            the rows of the pass [N], then one that stands for zeros.
        kept_rows: R.
        keep: [K] rows of the pass whose own last inputs are wanted, None for none.
    """

    index: Tensor
    kept_rows: int
    keep: Tensor | None

    @classmethod
    def build(cls, layout: TreeLayout, width: int, keep: Sequence[int] | IntArray | None = None) -> PathTaps:
        """For one pass and the rows of it to keep."""
        kept = None if keep is None else torch.as_tensor(keep, dtype=torch.int64, device=layout.device)
        index = torch.as_tensor(layout.taps(width), dtype=torch.int64, device=layout.device)
        return cls(index, layout.kept_rows, kept)

    @property
    def width(self) -> int:
        """How many rows before each."""
        return self.index.shape[1]

    def joined(self, inputs: Tensor, past: Tensor | None) -> Tensor:
        """The inputs that `index` numbers: those of the past [R, width, C], of the pass [N, C], zeros."""
        zeros = inputs.new_zeros(1, inputs.shape[1])
        return torch.cat((inputs, zeros) if past is None else (past.flatten(0, 1), inputs, zeros))

    def kept(self, inputs: Tensor, past: Tensor | None) -> Tensor | None:
        """[K, width, C] the last inputs on the paths of the rows to keep, their own among them, nearest last."""
        if self.keep is None:
            return None
        last = torch.cat((self.index[self.keep, 1:], self.keep[:, None] + self.kept_rows * self.width), dim=1)
        return self.joined(inputs, past)[last]


def convolve(
    inputs: Tensor,
    weight: Tensor,
    taps: PathTaps,
    past: Tensor | None,
    *,
    first: int,
    heads: int,
    width: int,
    norm: float | None = None,
) -> Tensor:
    """silu(convolution) of the channels of some heads, each channel with its own weights.

    Args:
        inputs: [N, C]; rows may be a part of wider ones.
        weight: [C, taps.width + 1] float32, the row's own last.
        taps: of the pass.
        past: [R, taps.width, C] inputs kept with the rows of the past.
        first: the first channel of the first head.
        heads: how many. width: of each.
        norm: the length that each head is given (x / √(Σx² + 1e-6), as in flash-linear-attention); None: left as it is.

    Returns:
        [N, heads, width] float32.
    """
    if inputs.device.type != "cpu":
        from spinf_core.nn.kernels.convolution import convolve as fused

        return fused(inputs, weight, taps, past, first, heads, width, norm)
    channels = slice(first, first + heads * width)
    joined = taps.joined(inputs[:, channels], None if past is None else past[..., channels])
    mixed = inputs[:, channels].float() * weight[channels, taps.width]
    for tap in range(taps.width):
        mixed = mixed + joined[taps.index[:, tap]].float() * weight[channels, tap]
    out = silu(mixed).view(-1, heads, width)
    if norm is None:
        return out
    return out * (torch.rsqrt(out.square().sum(-1, keepdim=True) + NORM_EPS) * norm)
