"""The short convolution along paths in Triton (see `spinf_core.nn.convolution.convolve`): each input is read where it lies."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.nn.convolution import NORM_EPS, PathTaps
from spinf_core.nn.kernels.launch import launcher

ROWS = 8


@triton.jit(do_not_specialize=["rows", "past_rows", "first", "stride", "past_stride"])
def _convolve(
    inputs,  # [N, ·], rows `stride` apart
    past,  # [R · TAPS, ·], rows `past_stride` apart
    weight,  # [C, TAPS + 1] float32
    taps,  # [N, TAPS]: rows of the past, then of the pass, then the number of both for zeros
    out,  # [N, HEADS, WIDTH] float32
    rows,  # N
    past_rows,  # R · TAPS
    first,  # channel of the first head
    stride,
    past_stride,
    norm,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH up to a power of two
    TAPS: tl.constexpr,
    NORMED: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    channel = first + head * WIDTH + column
    own = row.to(tl.int64)[:, None] * stride + channel[None, :]
    last = tl.load(weight + channel * (TAPS + 1) + TAPS, mask=column < WIDTH, other=0.0)
    mixed = tl.load(inputs + own, mask=here, other=0.0).to(tl.float32) * last[None, :]
    for tap in tl.static_range(TAPS):
        at = tl.load(taps + row.to(tl.int64) * TAPS + tap, mask=row < rows, other=0)
        factor = tl.load(weight + channel * (TAPS + 1) + tap, mask=column < WIDTH, other=0.0)
        in_past = (at < past_rows)[:, None] & here
        in_pass = ((at >= past_rows) & (at < past_rows + rows))[:, None] & here
        before = tl.load(past + at[:, None] * past_stride + channel[None, :], mask=in_past, other=0.0).to(tl.float32)
        within = (at - past_rows)[:, None] * stride + channel[None, :]
        before += tl.load(inputs + within, mask=in_pass, other=0.0).to(tl.float32)
        mixed += before * factor[None, :]
    mixed = mixed / (1 + tl.exp(-mixed))
    if NORMED:
        mixed = mixed * (norm / tl.sqrt(tl.sum(mixed * mixed, 1) + EPS))[:, None]
    place = (row.to(tl.int64) * HEADS + head)[:, None] * WIDTH + column[None, :]
    tl.store(out + place, mixed, mask=here)


def convolve(
    inputs: Tensor, weight: Tensor, taps: PathTaps, past: Tensor | None, first: int, heads: int, width: int, norm: float | None
) -> Tensor:
    """See `spinf_core.nn.convolution.convolve`."""
    assert inputs.stride(1) == 1
    assert weight.shape == (inputs.shape[1], taps.width + 1)
    assert weight.is_contiguous()
    flat = inputs if past is None else past.flatten(0, 1)
    assert flat.stride(1) == 1
    out = torch.empty(len(inputs), heads, width, dtype=torch.float32, device=inputs.device)
    launcher(_convolve)[triton.cdiv(len(inputs), ROWS), heads](
        inputs,
        flat,
        weight,
        taps.index,
        out,
        len(inputs),
        0 if past is None else len(flat),
        first,
        inputs.stride(0),
        flat.stride(0),
        norm or 0.0,
        HEADS=heads,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        TAPS=taps.width,
        NORMED=norm is not None,
        EPS=NORM_EPS,
        ROWS=ROWS,
        num_warps=4,
    )
    return out
