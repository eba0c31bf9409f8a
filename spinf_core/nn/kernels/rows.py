"""Row-wise kernels in Triton: norms with what lies around them, gated activations, heads. One program reads a row once.

Each computes in float32 and rounds where its plain torch twin does; sums over a row run in the same order whatever the pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.nn.kernels.formats import scaling, stored
from spinf_core.nn.kernels.launch import launcher
from spinf_core.nn.linear import InputFormat


@triton.jit
def _normed(x, weight, columns, inside, eps, D: tl.constexpr, dtype: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr):
    """x [B] float32 of one row, zeros outside: RMS-normed and rounded to `dtype`, as float32."""
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps)
    if WEIGHT:
        factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        if not WIDE:
            normed = normed.to(dtype).to(tl.float32)
        normed = normed * factor
    return normed.to(dtype).to(tl.float32)


@triton.jit
def _rms_norm(
    x, weight, out, stride, eps, out_scale,
    D: tl.constexpr, BLOCK: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
    SCALED: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    values = tl.load(x + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    normed = _normed(values, weight, columns, inside, eps, D, x.dtype.element_ty, WEIGHT, WIDE)
    tl.store(out + row * D + columns, stored(normed, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)


@triton.jit
def _add_norm(
    x, update, after, scalar, sum_out, then, out, after_eps, then_eps, out_scale,
    D: tl.constexpr, BLOCK: tl.constexpr, AFTER: tl.constexpr, AFTER_WIDE: tl.constexpr, SCALAR: tl.constexpr,
    THEN_WIDE: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    at = row * D + columns
    change = tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
    if AFTER:
        change = _normed(change, after, columns, inside, after_eps, D, x.dtype.element_ty, True, AFTER_WIDE)
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + change
    if SCALAR:
        values = values.to(x.dtype.element_ty).to(tl.float32) * scalar
    rounded = values.to(x.dtype.element_ty)
    tl.store(sum_out + at, rounded, mask=inside)
    normed = _normed(rounded.to(tl.float32), then, columns, inside, then_eps, D, x.dtype.element_ty, True, THEN_WIDE)
    tl.store(out + at, stored(normed, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)


@triton.jit
def _gated(
    gate, up, out, gate_stride, up_stride, out_scale,
    F: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < F
    dtype = gate.dtype.element_ty
    x = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    # x/2 · (1 + tanh(z)) is x · sigmoid(2z)
    z = 1.5957691216057308 * (x + 0.044715 * x * x * x) if GELU else x
    active = (x / (1 + tl.exp(-z))).to(dtype).to(tl.float32)
    product = (active * factor).to(dtype)
    tl.store(out + row * F + columns, stored(product, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)


@triton.jit
def _turn_heads(
    x, stride, weight, eps, cos, sin, out, row,
    H: tl.constexpr, H_BLOCK: tl.constexpr, D: tl.constexpr, HALF_BLOCK: tl.constexpr,
    NORM: tl.constexpr, WEIGHT: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """One row's H heads: normed, then turned by its angles; rounded once."""
    half: tl.constexpr = D // 2
    heads = tl.arange(0, H_BLOCK)[:, None]
    columns = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (heads < H) & (columns < half)
    at = x + row * stride + heads * D + columns
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / D + eps)[:, None]
        a, b = a * scale, b * scale
        if WEIGHT:
            a = a * tl.load(weight + columns, mask=columns < half, other=0.0).to(tl.float32)
            b = b * tl.load(weight + half + columns, mask=columns < half, other=0.0).to(tl.float32)
    if TURN:
        c = tl.load(cos + row * half + columns, mask=columns < half, other=0.0)
        s = tl.load(sin + row * half + columns, mask=columns < half, other=0.0)
        a, b = a * c - b * s, b * c + a * s
    to = out + row * (H * D) + heads * D + columns
    tl.store(to, a.to(out.dtype.element_ty), mask=inside)
    tl.store(to + half, b.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _heads(
    q, k, v, q_stride, k_stride, v_stride, q_weight, k_weight, v_weight, q_eps, k_eps, v_eps, cos, sin, q_out, k_out, v_out,
    H: tl.constexpr, H_BLOCK: tl.constexpr, K: tl.constexpr, K_BLOCK: tl.constexpr, D: tl.constexpr, HALF_BLOCK: tl.constexpr,
    Q_NORM: tl.constexpr, Q_WEIGHT: tl.constexpr, K_NORM: tl.constexpr, K_WEIGHT: tl.constexpr,
    V_NORM: tl.constexpr, V_WEIGHT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    if which == 0:
        _turn_heads(q, q_stride, q_weight, q_eps, cos, sin, q_out, row, H, H_BLOCK, D, HALF_BLOCK, Q_NORM, Q_WEIGHT, True)
    elif which == 1:
        _turn_heads(k, k_stride, k_weight, k_eps, cos, sin, k_out, row, K, K_BLOCK, D, HALF_BLOCK, K_NORM, K_WEIGHT, True)
    else:
        _turn_heads(v, v_stride, v_weight, v_eps, cos, sin, v_out, row, K, K_BLOCK, D, HALF_BLOCK, V_NORM, V_WEIGHT, False)


Norm = tuple[Tensor | None, float, bool]
"""A norm's weight (None: ones), eps, and whether the weight is multiplied in float32."""


def rms_norm(x: Tensor, norm: Norm, output: InputFormat | None) -> Tensor:
    """x [..., D], rows one behind another or at one stride, normed, in the output's format."""
    weight, eps, wide = norm
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    count, width = rows.shape
    out, scale, format_ = _output(rows.shape, x, output)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    block, warps = _row_shape(width)
    launcher(_rms_norm)[(count,)](
        rows, x if weight is None else weight, out, rows.stride(0), eps, scale,
        D=width, BLOCK=block, WEIGHT=weight is not None, WIDE=wide, num_warps=warps, **format_,
    )  # fmt: skip
    return out.view(x.shape)


def add_norm(
    x: Tensor, update: Tensor, after: Norm | None, scalar: float | None, then: Norm, output: InputFormat | None
) -> tuple[Tensor, Tensor]:
    """See `nn.norm.add_norm`."""
    count, width = x.shape
    x, update = x.contiguous(), update.contiguous()
    summed = torch.empty_like(x)
    out, scale, format_ = _output(x.shape, x, output)
    after_weight, after_eps, after_wide = after or (x, 0.0, False)
    then_weight, then_eps, then_wide = then
    assert then_weight is not None
    block, warps = _row_shape(width)
    launcher(_add_norm)[(count,)](
        x, update, after_weight, 1.0 if scalar is None else scalar, summed, then_weight, out, after_eps, then_eps, scale,
        D=width, BLOCK=block, AFTER=after is not None, AFTER_WIDE=after_wide, SCALAR=scalar is not None,
        THEN_WIDE=then_wide, num_warps=warps, **format_,
    )  # fmt: skip
    return summed, out


def gated(gate: Tensor, up: Tensor, gelu: bool, output: InputFormat | None) -> Tensor:
    """activation(gate) · up for [N, F] each, rows at any stride, in the output's format."""
    count, width = gate.shape
    out, scale, format_ = _output(gate.shape, gate, output)
    block = min(1024, triton.next_power_of_2(width))
    launcher(_gated)[count, triton.cdiv(width, block)](
        gate, up, out, gate.stride(0), up.stride(0), scale, F=width, BLOCK=block, GELU=gelu, num_warps=4, **format_
    )
    return out


def turned_heads(
    q: Tensor,
    keys_values: tuple[Tensor, Tensor] | None,
    norms: tuple[Norm | None, Norm | None, Norm | None],
    tables: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """See `nn.heads.turned_heads`; without keys and values the other two results are the first."""
    count, heads, width = q.shape
    k, v = keys_values if keys_values is not None else (q, q)
    kv_heads = k.shape[1]
    outs = [q.new_empty(q.shape)]
    outs += [q.new_empty(k.shape), q.new_empty(v.shape)] if keys_values is not None else [outs[0], outs[0]]
    flags = {}
    for name, norm in zip("QKV", norms, strict=True):
        flags[f"{name}_NORM"] = norm is not None
        flags[f"{name}_WEIGHT"] = norm is not None and norm[0] is not None
    weights = [q if norm is None or norm[0] is None else norm[0] for norm in norms]
    launcher(_heads)[count, 1 if keys_values is None else 3](
        q, k, v, q.stride(0), k.stride(0), v.stride(0), *weights, *(0.0 if norm is None else norm[1] for norm in norms),
        *tables, *outs,
        H=heads, H_BLOCK=triton.next_power_of_2(heads), K=kv_heads, K_BLOCK=triton.next_power_of_2(kv_heads),
        D=width, HALF_BLOCK=triton.next_power_of_2(width // 2), num_warps=4, **flags,
    )  # fmt: skip
    return outs[0], outs[1], outs[2]


def _output(shape: torch.Size, like: Tensor, output: InputFormat | None) -> tuple[Tensor, float, dict[str, object]]:
    """A place for the result, the scale, and the kernel's constants."""
    out = torch.empty(shape, dtype=output.dtype if output else like.dtype, device=like.device)
    scale, scaled = scaling(output)
    return out, scale, {"SCALED": scaled, "LARGEST": torch.finfo(out.dtype).max}


def _row_shape(width: int) -> tuple[int, int]:
    """Columns of a program, a power of two, and its warps."""
    block = triton.next_power_of_2(width)
    return block, min(4, max(1, block // 512))
