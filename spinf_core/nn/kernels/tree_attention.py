"""Tree attention in Triton, by online softmax over blocks of keys (Dao et al. 2022, «FlashAttention», section 3.1).

Two launches: every row against its content (content rows causally, rows after the cut against all of it), in tiles that mix
branches; then rows after the cut go on with their own paths. Keys come in blocks counted from depth 0 of the content or from
the cut, masked lanes add exact zeros, and products that a compiler might fuse with sums in one copy of a loop but not in
another are fused by name: a row's bits depend on its own path alone.
"""

from __future__ import annotations

import math
import os

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spinf_core.nn.kernels.formats import stored
from spinf_core.nn.kernels.tables import TileTables, tile_tables
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
    mixed = tl.dot(weights, values, mixed * decay[:, None], input_precision="ieee")
    return rising, total, mixed


@triton.jit
def _scores(q_tile, k_tile, UPCAST: tl.constexpr):
    if UPCAST:
        q_tile, k_tile = q_tile.to(tl.float32), k_tile.to(tl.float32)
    return tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")


@triton.jit
def _content_block(
    number, q_tile, q_depth, count, seen, k, v, keys, key, kv_head, scale, highest, total, mixed,
    K: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    IN_PLACE: tl.constexpr, TILED: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The block of keys that begins with key `number` of the tile's content."""
    numbers = number + tl.arange(0, BLOCK)
    here = numbers < count
    if TILED:
        k_tile = k.load([key + number, kv_head * D])
        v_tile = v.load([key + number, kv_head * D])
        if MASKED:  # rows behind the content are another's, and may hold anything
            v_tile = tl.where(here[:, None], v_tile, 0.0)
    else:
        rows = key + numbers if IN_PLACE else tl.load(keys + key + numbers, mask=here, other=0)
        columns = tl.arange(0, D_BLOCK)
        at = (rows.to(tl.int64)[:, None] * K + kv_head) * D + columns[None, :]
        inside = here[:, None] & (columns < D)[None, :]
        k_tile = tl.load(k + at, mask=inside, other=0.0)
        v_tile = tl.load(v + at, mask=inside, other=0.0)
    scores = _scores(q_tile, k_tile, UPCAST)
    if MASKED:
        visible = here[None, :] & (numbers[None, :] < seen[:, None])
        if WINDOW > 0:
            visible = visible & (q_depth[:, None] - numbers[None, :] < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    return _soften(scores, v_tile, highest, total, mixed, scale, UPCAST)


# What differs from pass to pass must not compile a kernel anew.
@triton.jit(do_not_specialize=["tiles"])
def _attend_content(
    q,  # [N, H, D]
    k,  # [·, K, D]; where TILED a descriptor of [·, K · D] in tiles of [BLOCK, D]
    v,
    out,  # [N, H, D] in the wanted format, of final rows
    partial,  # [N, H, D], of the others
    lse,  # [N, H] float32, in base 2, of the others
    content,  # see TileTables
    keys,
    final,
    depth,
    tiles,
    scale,  # of the products, times log2(e)
    out_scale,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T: tl.constexpr,
    FOLD: tl.constexpr,  # query heads of one kv head that share a program
    BLOCK: tl.constexpr,  # keys
    WINDOW: tl.constexpr,  # 0: none
    IN_PLACE: tl.constexpr,
    TILED: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(0)
    block = tl.program_id(1)
    lanes = tl.arange(0, T * FOLD)
    lane = lanes // FOLD
    head = block * FOLD + lanes % FOLD
    kv_head = block * FOLD // (H // K)
    first_row = tl.load(content + tile)
    rows = tl.load(content + tiles + tile)
    if rows == 0:
        return
    used = lane < rows
    key = tl.load(content + 2 * tiles + tile)
    count = tl.load(content + 3 * tiles + tile)
    first_seen = tl.load(content + 4 * tiles + tile)
    row = first_row + tl.where(used, lane, 0)
    columns = tl.arange(0, D_BLOCK)
    inside = used[:, None] & (columns < D)[None, :]
    q_at = (row.to(tl.int64) * H + head)[:, None] * D + columns[None, :]
    q_tile = tl.load(q + q_at, mask=inside, other=0.0)
    q_depth = tl.load(depth + row)
    seen = first_seen + lane

    highest = tl.full((T * FOLD,), float("-inf"), tl.float32)
    total = tl.zeros((T * FOLD,), tl.float32)
    mixed = tl.zeros((T * FOLD, D_BLOCK), tl.float32)
    all_from = 0  # all lanes see the keys from here on …
    if WINDOW > 0:
        first = tl.maximum(tl.min(q_depth) - WINDOW + 1, 0) // BLOCK * BLOCK
        all_from = tl.minimum(
            tl.cdiv(tl.maximum(tl.max(q_depth) - WINDOW + 1, 0), BLOCK) * BLOCK, tl.cdiv(count, BLOCK) * BLOCK
        )
        for number in range(first, all_from, BLOCK):
            highest, total, mixed = _content_block(
                number, q_tile, q_depth, count, seen, k, v, keys, key, kv_head, scale, highest, total, mixed,
                K, D, D_BLOCK, BLOCK, WINDOW, IN_PLACE, TILED, True, UPCAST,
            )  # fmt: skip
    all_to = tl.minimum(first_seen, count) // BLOCK * BLOCK  # … to here
    for number in range(all_from, all_to, BLOCK):
        highest, total, mixed = _content_block(
            number, q_tile, q_depth, count, seen, k, v, keys, key, kv_head, scale, highest, total, mixed,
            K, D, D_BLOCK, BLOCK, WINDOW, IN_PLACE, TILED, False, UPCAST,
        )  # fmt: skip
    for number in range(tl.maximum(all_from, all_to), count, BLOCK):
        highest, total, mixed = _content_block(
            number, q_tile, q_depth, count, seen, k, v, keys, key, kv_head, scale, highest, total, mixed,
            K, D, D_BLOCK, BLOCK, WINDOW, IN_PLACE, TILED, True, UPCAST,
        )  # fmt: skip
    found = total > 0
    mixed = mixed / tl.where(found, total, 1.0)[:, None]
    if tl.load(final + tile) != 0:
        rounded = mixed.to(q.dtype.element_ty)
        tl.store(out + q_at, stored(rounded, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)
    else:
        tl.store(partial + q_at, mixed.to(partial.dtype.element_ty), mask=inside)
        level = tl.where(found, highest + tl.log2(tl.where(found, total, 1.0)), float("-inf"))
        tl.store(lse + row.to(tl.int64) * H + head, level, mask=used)


@triton.jit
def _attend_paths(
    q,  # [N, H, D]
    k,  # [·, K, D]
    v,
    out,  # [N, H, D] in the wanted format
    partial,  # [N, H, D] and
    lse,  # [N, H] of the rows against their content
    rows,  # see TileTables
    keys,
    key_start,
    key_count,
    cut,
    depth,
    scale,
    out_scale,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T: tl.constexpr,
    FOLD: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(0)
    block = tl.program_id(1)
    lanes = tl.arange(0, T * FOLD)
    lane = lanes // FOLD
    head = block * FOLD + lanes % FOLD
    kv_head = block * FOLD // (H // K)
    count = tl.load(key_count + tile)
    if count == 0:
        return
    row = tl.load(rows + tile * T + lane)
    used = row >= 0
    row = tl.maximum(row, 0).to(tl.int64)
    columns = tl.arange(0, D_BLOCK)
    inside = used[:, None] & (columns < D)[None, :]
    q_at = (row * H + head)[:, None] * D + columns[None, :]
    q_tile = tl.load(q + q_at, mask=inside, other=0.0)
    q_depth = tl.load(depth + row, mask=used, other=0)
    start = tl.load(key_start + tile)
    before = tl.load(cut + tile)
    seen = count - T + 1 + lane

    has_content = used & (lane - lane + before > 0)
    highest = tl.load(lse + row * H + head, mask=has_content, other=float("-inf"))
    found = highest > float("-inf")
    total = tl.where(found, 1.0, 0.0)
    mixed = tl.load(partial + q_at, mask=inside & found[:, None], other=0.0).to(tl.float32)
    for number in range(0, count, T):
        numbers = number + tl.arange(0, T)
        key_row = tl.load(keys + start + numbers)
        present = key_row >= 0
        at = (tl.maximum(key_row, 0).to(tl.int64) * K + kv_head)[:, None] * D + columns[None, :]
        here = present[:, None] & (columns < D)[None, :]
        k_tile = tl.load(k + at, mask=here, other=0.0)
        v_tile = tl.load(v + at, mask=here, other=0.0)
        scores = _scores(q_tile, k_tile, UPCAST)
        visible = present[None, :] & (numbers[None, :] < seen[:, None])
        if WINDOW > 0:
            visible = visible & (q_depth[:, None] - (before + numbers)[None, :] < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        highest, total, mixed = _soften(scores, v_tile, highest, total, mixed, scale, UPCAST)
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    rounded = mixed.to(q.dtype.element_ty)
    tl.store(out + q_at, stored(rounded, out_scale, out.dtype.element_ty, SCALED, LARGEST), mask=inside)


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
        past: tuple[Tensor, Tensor] | None = None,
        output: InputFormat | None = None,
    ) -> Tensor:
        """See `attention.TreeAttention`."""
        heads, head_dim, kv_heads = q.shape[1], q.shape[2], k.shape[1]
        assert heads % kv_heads == 0
        assert k.shape == v.shape
        q = q.contiguous()
        k, v = (k.contiguous(), v.contiguous()) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))
        tables, group = self._tables, heads // kv_heads
        out = torch.empty_like(q, dtype=output.dtype if output else q.dtype)
        partial = torch.empty_like(q)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        out_scale = output.scale if output and output.scale is not None else 1.0
        in_base_2 = scale * math.log2(math.e)
        shared = {
            "H": heads,
            "K": kv_heads,
            "D": head_dim,
            "D_BLOCK": triton.next_power_of_2(head_dim),
            "WINDOW": window or 0,
            "SCALED": bool(output and output.scale is not None),
            "LARGEST": torch.finfo(out.dtype).max,
            "UPCAST": INTERPRETED,
        }
        tiles = tables.content.shape[1]
        if tiles:
            shape = content_shape(group, head_dim)
            tiled = tables.in_place and head_dim == shared["D_BLOCK"] >= 64
            _attend_content[tiles, heads // shape.fold](
                q,
                *((_in_tiles(k, shape.keys), _in_tiles(v, shape.keys)) if tiled else (k, v)),
                out,
                partial,
                lse,
                tables.content,
                tables.content_keys,
                tables.final,
                tables.depth,
                tiles,
                in_base_2,
                out_scale,
                T=CONTENT_TILE,
                FOLD=shape.fold,
                BLOCK=shape.keys,
                IN_PLACE=tables.in_place,
                TILED=tiled,
                num_warps=shape.warps,
                num_stages=shape.stages,
                **shared,
            )
        tiles = len(tables.path_rows)
        if tiles:
            shape = path_shape(group, head_dim)
            _attend_paths[tiles, heads // shape.fold](
                q,
                k,
                v,
                out,
                partial,
                lse,
                tables.path_rows,
                tables.path_keys,
                *tables.paths,
                tables.depth,
                in_base_2,
                out_scale,
                T=PATH_TILE,
                FOLD=shape.fold,
                num_warps=shape.warps,
                num_stages=shape.stages,
                **shared,
            )
        return out


def _in_tiles(x: Tensor, rows: int) -> TensorDescriptor:
    """[·, K, D] for the device's tile copies: as a table [·, K · D] in tiles of [rows, D]."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [rows, x.shape[2]])


@attrs.frozen
class TileShape:
    """How many query heads a program folds into its lanes, keys per block, warps, and stages of the key pipeline."""

    fold: int
    keys: int
    warps: int
    stages: int


def content_shape(group: int, head_dim: int) -> TileShape:
    """Of the tiles against contents; `group` query heads share a key head."""
    fold = _fold(group, CONTENT_TILE, 128 if head_dim <= 256 else 64)
    return TileShape(fold, 64 if head_dim <= 256 else 32, 8, 2)


def path_shape(group: int, head_dim: int) -> TileShape:
    """Of the tiles against own paths."""
    wide = head_dim > 256
    return TileShape(_fold(group, PATH_TILE, 64 if wide else 32), PATH_TILE, 8 if wide else 2, 1)


def _fold(group: int, lanes: int, wanted: int) -> int:
    fold = 1
    while group % (2 * fold) == 0 and lanes * fold * 2 <= wanted:
        fold *= 2
    return fold
