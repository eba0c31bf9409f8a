"""Normalizations over the last axis; each row from its own values alone."""

from __future__ import annotations

import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, write


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · weight, computed in float32 (Zhang and Sennrich 2019, eq. 4).

    Args:
        weight: [D].
        eps: added to the mean of squares.
        output: the format that the linear behind wants.
    """

    def __init__(self, weight: Tensor, eps: float, output: InputFormat | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self.output = output

    def __call__(self, x: Tensor) -> Tensor:
        """[…, D] -> […, D]."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return write(self.weight * (wide * scale).to(x.dtype), self.output)
