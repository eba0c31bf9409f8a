"""Normalizations over the last axis; each row from its own values alone."""

from __future__ import annotations

import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, Linear, write


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

    @property
    def parameters(self) -> tuple[Tensor | None, float, bool]:
        """Weight, eps, wide."""
        return self.weight, self.eps, self.wide

    def __call__(self, x: Tensor) -> Tensor:
        """[…, D] -> […, D]."""
        if x.is_cuda:
            from spinf_core.nn.kernels import rows

            return rows.rms_norm(x, self.parameters, self.output)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed = wide * scale if wide is x else wide.mul_(scale)
        if self.weight is None:
            return write(normed.to(x.dtype), self.output)
        if self.wide:
            return write((normed * self.weight.float()).to(x.dtype), self.output)
        return write(self.weight * normed.to(x.dtype), self.output)


def add_norm(x: Tensor, update: Tensor, after: RMSNorm | None, scalar: float | None, then: RMSNorm) -> tuple[Tensor, Tensor]:
    """What lies between two linears of a residual stream: x' = (x + after(update)) · scalar, and then(x').

    Args:
        x, update: [N, D]. after: None: the update as it is. scalar: None: 1. then: writes its output's format.

    Returns:
        x' and then(x').
    """
    if x.is_cuda:
        from spinf_core.nn.kernels import rows

        return rows.add_norm(x, update, after.parameters if after else None, scalar, then.parameters, then.output)
    summed = x + (update if after is None else after(update))
    if scalar is not None:
        summed = summed * scalar
    return summed, then(summed)


def add_linear_norm(x: Tensor, linear: Linear, inputs: Tensor, then: RMSNorm) -> tuple[Tensor, Tensor]:
    """x' = x + linear(inputs), and then(x')."""
    if x.is_cuda:
        return add_norm(x, linear(inputs), None, None, then)
    summed = linear.added(inputs, x)
    return summed, then(summed)
