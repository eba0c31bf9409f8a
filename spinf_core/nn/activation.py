"""Activations whose bits do not depend on where in an array a number lies."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.nn.linear import InputFormat, write


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x) (Elfwing et al. 2018).

    In float32 on a CPU torch's own kernel treats the last few numbers of a thread's share by another formula, so that a bit
    may depend on the size of the pass; exp and division do not.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return x / (1 + torch.exp(-x))
    return F.silu(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x)); the same caveat holds."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return 1 / (1 + torch.exp(-x))
    return torch.sigmoid(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks and Gimpel 2016, section 2); the same caveat holds."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return F.gelu(x, approximate="tanh")


def gated(gate: Tensor, up: Tensor, activation: Literal["silu", "gelu_tanh"], output: InputFormat | None) -> Tensor:
    """activation(gate) · up (Shazeer 2020, «GLU variants», section 2) for [N, F] each, as the linear behind wants it."""
    if gate.is_cuda:
        from spinf_core.nn.kernels import rows

        return rows.gated(gate, up, activation == "gelu_tanh", output)
    return write((silu if activation == "silu" else gelu_tanh)(gate) * up, output)
