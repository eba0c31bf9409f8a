"""Rotary position embedding (Su et al. 2021, «RoFormer», section 3.4), in the half-split layout of Llama checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spinf_core.errors import SetupError


def inverse_frequencies(head_dim: int, parameters: Mapping[str, Any]) -> Tensor:
    """[head_dim / 2] float32 angular frequencies for a checkpoint's `rope_parameters`.

    Types `default`, `llama3` (the frequency-dependent scaling of the Llama 3.1 checkpoints) and `proportional` (Gemma 4: only
    the first `partial_rotary_factor` of the pairs turn, at frequencies that are still counted over the whole head).

    Raises:
        SetupError: for a type that is not implemented.
    """
    kind = parameters.get("rope_type", "default")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies: Tensor = 1.0 / (float(parameters["rope_theta"]) ** exponents)
    if kind == "default":
        return frequencies
    if kind == "proportional":
        turning = int(float(parameters.get("partial_rotary_factor", 1.0)) * head_dim // 2)
        still = torch.arange(len(frequencies)) >= turning
        return frequencies.masked_fill(still, 0.0) / float(parameters.get("factor", 1.0))
    if kind != "llama3":
        raise SetupError(f"rope type {kind!r} is not implemented; 'default', 'llama3' and 'proportional' are")
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelength = 2 * math.pi / frequencies
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


def interleaved_axes(pairs: int, sections: Sequence[int]) -> Tensor:
    """[pairs] int64: the axis of the positions that turns each pair of a head, by the interleaved sections of Qwen3-VL.

    Axis a > 0 has the pairs a, a + 3, a + 6, … below 3 · `sections[a]`; axis 0 has all others.
    """
    axes = torch.zeros(pairs, dtype=torch.int64)
    for axis in range(1, len(sections)):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


class Rotary:
    """Cosine and sine tables for the positions of one pass, and their application.

    Args:
        frequencies: [D / 2] float32.
        device: where the tables go.
        axes: [D / 2] the axis of the positions that turns each pair (see `interleaved_axes`); None: there is but one axis.
    """

    def __init__(self, frequencies: Tensor, device: torch.device, axes: Tensor | None = None) -> None:
        self.frequencies = frequencies.to(device)
        self.device = device
        self.axes = None if axes is None else axes.to(device)

    def tables(self, positions: Tensor | np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos, sin [N, 1, D / 2] for positions [N], or [A, N] where pairs have axes."""
        at = torch.as_tensor(positions, device=self.device).float()
        angles = (at[:, None] if self.axes is None else at[self.axes].T) * self.frequencies
        return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """x [N, H, D], its halves (a, b) turned to (a·cos − b·sin, b·cos + a·sin)."""
    cos, sin = tables
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (a, b), (first, second) = x.chunk(2, dim=-1), turned.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=second).addcmul_(a, sin)
    return turned


def rotate_first(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """x [N, H, D], of which the tables turn only the first numbers of each head: twice as many as they have columns."""
    width = 2 * tables[0].shape[-1]
    return torch.cat((rotate(x[..., :width], tables), x[..., width:]), dim=-1)
