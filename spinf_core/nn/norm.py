"""Normalizations over the last axis; each row from its own values alone."""

from __future__ import annotations

import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, write


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · weight, computed in float32 (Zhang and Sennrich 2019, eq. 4).

    Args:
        weight: [D]; None: all ones.
        eps: added to the mean of squares.
        output: the format that the linear behind wants.
        wide: whether the weight is multiplied in float32 too, before rounding, rather than after it.
    """

    def __init__(self, weight: Tensor | None, eps: float, output: InputFormat | None = None, *, wide: bool = False) -> None:
        self.weight = weight
        self.eps = eps
        self.output = output
        self.wide = wide

    def __call__(self, x: Tensor) -> Tensor:
        """[…, D] -> […, D]."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed = wide * scale
        if self.weight is None:
            return write(normed.to(x.dtype), self.output)
        if self.wide:
            return write((normed * self.weight.float()).to(x.dtype), self.output)
        return write(self.weight * normed.to(x.dtype), self.output)
