"""Tree attention in Triton, by online softmax over blocks of keys (Dao et al. 2022, «FlashAttention», section 3.1).

A program takes a tile of rows that may be of many branches: against their content first (content rows causally, rows after the
cut against all of it), then step by step against the rows' own paths, a few paths to a step, each row seeing its own.

Keys come in blocks counted from depth 0 of the content and in stretches counted from the cut, a row meets one stretch of its
path at a time, masked lanes add exact zeros, and products that a compiler might fuse with sums in one copy of a loop but not in
another are fused by name: a row's bits depend on its own path alone.
"""

from __future__ import annotations

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spinf_core.nn.attention import Blocks
from spinf_core.nn.kernels.formats import scaling, stored
from spinf_core.nn.kernels.launch import launcher
from spinf_core.nn.kernels.shapes import shared_memory, tile_shape
from spinf_core.nn.kernels.tables import STEP_KEYS, TileTables, tile_tables
from spinf_core.nn.layout import PATH_TILE, TreeLayout
from spinf_core.nn.linear import InputFormat
from spinf_core.stack import CONTENT_TILE

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _soften(scores, values, highest, total, mixed, scale, UPCAST: tl.constexpr):
    """One block of keys: scores [L, B] (−inf where unseen) and values [B, D] into the running maximum, sum and mixture."""
    rising = tl.maximum(highest, tl.max(scores, 1) * scale)
    level = tl.where(rising == float("-inf"), 0.0, rising)
    weights = tl.exp2(tl.fma(scores, tl.zeros_like(scores) + scale, tl.zeros_like(scores) - level[:, None]))
    decay = tl.exp2(highest - level)
    total = tl.fma(total, decay, tl.sum(weights, 1))
    weights = weights.to(values.dtype)
    if UPCAST:
        weights, values = weights.to(tl.float32), values.to(tl.float32)
    mixed = tl.dot(weights, values, mixed * decay[:, None], input_precision="tf32x3")
    return rising, total, mixed


@triton.jit
def _scores(q_tile, k_tile, narrow, CAPPED: tl.constexpr, UPCAST: tl.constexpr):
    """q kᵀ, or tanh(q kᵀ · narrow)."""
    if UPCAST:
        q_tile, k_tile = q_tile.to(tl.float32), k_tile.to(tl.float32)
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="tf32x3")
    if CAPPED:
        scores = 1 - 2 / (tl.exp(2 * scores * narrow) + 1)
    return scores


@triton.jit
def _content_block(
    number, q_tile, low, count, seen, k, v, keys, key, kv_head, first_value, narrow, scale, highest, total, mixed,
    K: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, IN_PLACE: tl.constexpr, TILED: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The block of keys that begins with key `number` of the tile's content, of which lanes see [low, seen)."""
    numbers = number + tl.arange(0, BLOCK)
    here = numbers < count
    if TILED:
        k_tile = k.load([key + number, kv_head * D])
        v_tile = v.load([key + number, kv_head * D + first_value])
        if MASKED:  # rows behind the content are another's, and may hold anything
            v_tile = tl.where(here[:, None], v_tile, 0.0)
    else:
        rows = key + numbers if IN_PLACE else tl.load(keys + key + numbers, mask=here, other=0)
        at = (rows.to(tl.int64)[:, None] * K + kv_head) * D
        columns = tl.arange(0, D_BLOCK)[None, :]
        values = first_value + tl.arange(0, V_BLOCK)[None, :]
        k_tile = tl.load(k + at + columns, mask=here[:, None] & (columns < D), other=0.0)
        v_tile = tl.load(v + at + values, mask=here[:, None] & (values < D), other=0.0)
    scores = _scores(q_tile, k_tile, narrow, CAPPED, UPCAST)
    if MASKED:
        visible = here[None, :] & (numbers[None, :] < seen[:, None])
        if WINDOW > 0:
            visible = visible & (numbers[None, :] >= low[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    return _soften(scores, v_tile, highest, total, mixed, scale, UPCAST)


# What differs from pass to pass must not compile a kernel anew.
@triton.jit(do_not_specialize=["tiles", "rows_of_pass"])
def _attend(
    q,  # [N, H, D]
    k,  # [·, K, D]
    v,
    content_k,  # the same, or where TILED a descriptor of [·, K · D] in tiles of [BLOCK, D], of values [BLOCK, D / SHARES]
    content_v,
    out,  # [N, H, D] in the wanted format
    table,  # see TileTables
    content_keys,
    step_keys,
    step_paths,
    stretch,
    row_path,
    depth,
    blocks,
    block_keys,
    rows_of_pass,  # N
    tiles,
    narrow,  # of the products where they are capped
    scale,  # of the products or their tanh, times log2(e)
    out_scale,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T: tl.constexpr,  # rows of a tile that a program takes
    PARTS: tl.constexpr,  # programs that a tile is shared by
    FOLD: tl.constexpr,  # query heads of one kv head that share a program
    SHARES: tl.constexpr,  # programs that the columns of the values are shared by
    BLOCK: tl.constexpr,  # keys
    STEP_KEYS: tl.constexpr,
    STRETCH: tl.constexpr,
    PATH_STAGES: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    BLOCKS: tl.constexpr,  # whether the rows of a block see each other …
    WHOLE: tl.constexpr,  # … past the window too
    CAPPED: tl.constexpr,
    IN_PLACE: tl.constexpr,
    TILED: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(0) // PARTS
    first_lane = tl.program_id(0) % PARTS * T
    block = tl.program_id(1) // SHARES
    V_BLOCK: tl.constexpr = D_BLOCK // SHARES
    first_value = tl.program_id(1) % SHARES * V_BLOCK
    rows = tl.load(table + tiles + tile)
    if rows <= first_lane:
        return
    lanes = tl.arange(0, T * FOLD)
    lane = first_lane + lanes // FOLD
    head = block * FOLD + lanes % FOLD
    kv_head = block * FOLD // (H // K)
    used = lane < rows
    row = tl.load(table + tile) + tl.where(used, lane, 0)
    key = tl.load(table + 2 * tiles + tile)
    count = tl.load(block_keys + tile) if BLOCKS else tl.load(table + 3 * tiles + tile)
    first_seen = tl.load(table + 4 * tiles + tile)
    step = tl.load(table + 5 * tiles + tile)
    steps = tl.load(table + 6 * tiles + tile)
    columns = tl.arange(0, D_BLOCK)[None, :]
    values = first_value + tl.arange(0, V_BLOCK)[None, :]
    at_row = (row.to(tl.int64) * H + head)[:, None] * D
    q_tile = tl.load(q + at_row + columns, mask=used[:, None] & (columns < D), other=0.0)
    q_depth = tl.load(depth + row)
    seen = first_seen + lane
    low = q_depth - WINDOW + 1
    if BLOCKS:
        seen = tl.maximum(seen, tl.load(blocks + rows_of_pass + row))
        if WHOLE:
            low = tl.minimum(low, tl.load(blocks + row))

    highest = tl.full((T * FOLD,), float("-inf"), tl.float32)
    total = tl.zeros((T * FOLD,), tl.float32)
    mixed = tl.zeros((T * FOLD, V_BLOCK), tl.float32)
    all_from = 0  # all lanes see the keys from here on …
    if WINDOW > 0:
        first = tl.maximum(tl.min(low), 0) // BLOCK * BLOCK
        all_from = tl.minimum(tl.cdiv(tl.maximum(tl.max(low), 0), BLOCK) * BLOCK, tl.cdiv(count, BLOCK) * BLOCK)
        for number in range(first, all_from, BLOCK):
            highest, total, mixed = _content_block(
                number, q_tile, low, count, seen, content_k, content_v, content_keys, key, kv_head, first_value, narrow,
                scale, highest, total, mixed, K, D, D_BLOCK, V_BLOCK, BLOCK, WINDOW, CAPPED, IN_PLACE, TILED, True, UPCAST,
            )  # fmt: skip
    all_to = tl.minimum(first_seen, count) // BLOCK * BLOCK  # … to here
    for number in range(all_from, all_to, BLOCK):
        highest, total, mixed = _content_block(
            number, q_tile, low, count, seen, content_k, content_v, content_keys, key, kv_head, first_value, narrow,
            scale, highest, total, mixed, K, D, D_BLOCK, V_BLOCK, BLOCK, WINDOW, CAPPED, IN_PLACE, TILED, False, UPCAST,
        )  # fmt: skip
    for number in range(tl.maximum(all_from, all_to), count, BLOCK):
        highest, total, mixed = _content_block(
            number, q_tile, low, count, seen, content_k, content_v, content_keys, key, kv_head, first_value, narrow,
            scale, highest, total, mixed, K, D, D_BLOCK, V_BLOCK, BLOCK, WINDOW, CAPPED, IN_PLACE, TILED, True, UPCAST,
        )  # fmt: skip

    path = tl.load(row_path + row)
    after = q_depth - count  # the cut is where the content ends
    for at in tl.range(step * STEP_KEYS, (step + steps) * STEP_KEYS, BLOCK, num_stages=PATH_STAGES):
        numbers = at + tl.arange(0, BLOCK)
        key_row = tl.load(step_keys + numbers)
        key_path = tl.load(step_paths + numbers)
        key_after = tl.load(stretch + at // STEP_KEYS) * STRETCH + numbers % STRETCH
        present = key_row >= 0
        at_key = (tl.maximum(key_row, 0).to(tl.int64) * K + kv_head)[:, None] * D
        k_tile = tl.load(k + at_key + columns, mask=present[:, None] & (columns < D), other=0.0)
        v_tile = tl.load(v + at_key + values, mask=present[:, None] & (values < D), other=0.0)
        scores = _scores(q_tile, k_tile, narrow, CAPPED, UPCAST)
        visible = present[None, :] & (key_path[None, :] == path[:, None]) & (key_after[None, :] <= after[:, None])
        if WINDOW > 0:
            visible = visible & (after[:, None] - key_after[None, :] < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        highest, total, mixed = _soften(scores, v_tile, highest, total, mixed, scale, UPCAST)

    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    rounded = mixed.to(q.dtype.element_ty)
    inside = used[:, None] & (values < D)
    tl.store(out + at_row + values, stored(rounded, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)


class TritonTreeAttention:
    """The attention of one pass. See `attention.TreeAttention`."""

    def __init__(self, tables: TileTables) -> None:
        self._tables = tables

    @classmethod
    def of(cls, layout: TreeLayout) -> TritonTreeAttention:
        """The attention of a laid-out pass."""
        return cls(tile_tables(layout))

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int | None = None,
        blocks: Blocks = "apart",
        softcap: float | None = None,
        past: tuple[Tensor, Tensor] | None = None,
        output: InputFormat | None = None,
    ) -> Tensor:
        """See `attention.TreeAttention`."""
        heads, head_dim, kv_heads = q.shape[1], q.shape[2], k.shape[1]
        assert heads % kv_heads == 0
        assert k.shape == v.shape
        q = q.contiguous()
        k, v = (k.contiguous(), v.contiguous()) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))
        tables = self._tables
        out = torch.empty_like(q, dtype=output.dtype if output else q.dtype)
        tiles = tables.tiles.shape[1]
        shape = tile_shape(heads // kv_heads, head_dim, q.dtype, shared_memory(q.device))
        width = triton.next_power_of_2(head_dim)
        tiled = tables.in_place and head_dim == width >= 64
        parts = CONTENT_TILE // shape.rows
        out_scale, scaled = scaling(output)
        launcher(_attend)[tiles * parts, heads // shape.fold * shape.shares](
            q,
            k,
            v,
            *((_in_tiles(k, shape.keys, width), _in_tiles(v, shape.keys, width // shape.shares)) if tiled else (k, v)),
            out,
            tables.tiles,
            tables.content_keys,
            tables.step_keys,
            tables.step_paths,
            tables.stretch,
            tables.row_path,
            tables.depth,
            tables.depth if tables.blocks is None else tables.blocks,
            tables.depth if tables.block_keys is None else tables.block_keys,
            len(q),
            tiles,
            0.0 if softcap is None else scale / softcap,
            (scale if softcap is None else softcap) * math.log2(math.e),
            out_scale,
            H=heads,
            K=kv_heads,
            D=head_dim,
            D_BLOCK=width,
            T=shape.rows,
            PARTS=parts,
            FOLD=shape.fold,
            SHARES=shape.shares,
            BLOCK=shape.keys,
            STEP_KEYS=STEP_KEYS,
            STRETCH=PATH_TILE,
            PATH_STAGES=shape.path_stages,
            WINDOW=window or 0,
            BLOCKS=blocks != "apart" and tables.blocks is not None,
            WHOLE=blocks == "whole",
            CAPPED=softcap is not None,
            IN_PLACE=tables.in_place,
            TILED=tiled,
            SCALED=scaled,
            LARGEST=torch.finfo(out.dtype).max,
            UPCAST=INTERPRETED,
            num_warps=shape.warps,
            num_stages=shape.stages,
        )
        return out


def _in_tiles(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """[·, K, D] for the device's tile copies: as a table [·, K · D] in tiles of [rows, columns]."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [rows, columns])
