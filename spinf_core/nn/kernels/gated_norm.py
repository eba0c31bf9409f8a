"""The gated norm of recurrent layers in Triton (see `spinf_core.nn.gated_norm`): one reading, one writing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.nn.kernels.launch import launcher

ROWS = 8


@triton.jit(do_not_specialize=["rows", "stride"])
def _gated_norm(
    x,  # [N, HEADS, WIDTH] float32
    gate,  # [N, ·], rows `stride` apart
    weight,  # [WIDTH] float32
    out,  # [N, HEADS · WIDTH]
    rows,  # N
    stride,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH up to a power of two
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = (row * HEADS + head)[:, None] * WIDTH + column[None, :]
    value = tl.load(x + place, mask=here, other=0.0)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    opening = tl.load(gate + row[:, None] * stride + head * WIDTH + column[None, :], mask=here, other=0.0).to(tl.float32)
    opening = opening / (1 + tl.exp(-opening))
    value = value * scale[:, None] * factor[None, :] * opening
    tl.store(out + place, value.to(out.dtype.element_ty), mask=here)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `spinf_core.nn.gated_norm.GatedRMSNorm`."""
    rows, heads, width = x.shape
    assert gate.shape == (rows, heads * width)
    assert gate.stride(1) == 1
    assert x.is_contiguous()
    out = torch.empty(rows, heads * width, dtype=gate.dtype, device=gate.device)
    launcher(_gated_norm)[triton.cdiv(rows, ROWS), heads](
        x,
        gate,
        weight,
        out,
        rows,
        gate.stride(0),
        eps,
        HEADS=heads,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        ROWS=ROWS,
        num_warps=4,
    )
    return out
