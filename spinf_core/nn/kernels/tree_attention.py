"""Tree attention in Triton: tiles of query lanes, each with its list of keys, by online softmax over key blocks.

Two launches of one kernel: rows against their contents (content rows causally, rows after the cut against all of it), then
rows after the cut against their own paths; joined by their log-sum-exps (Dao et al. 2022, «FlashAttention», section 3.1). A
tile's keys come in blocks counted from depth 0 of the content or from the cut, and masked lanes add exact zeros, so that a
row's bits depend on its own path alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import attrs
import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.nn.layout import PATH_TILE, UNUSED, TreeLayout
from spinf_core.stack import CONTENT_TILE, IntArray

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _attend(
    q,  # [N, H, D]
    k,  # [·, K, D]
    v,
    out,  # [N, H, D]
    lse,  # [N, H] float32, in base 2
    queries,  # [tiles, T] rows of the pass, -1 for none
    key_rows,  # rows of k and v
    key_start,  # [tiles] first entry of key_rows
    key_count,  # [tiles]
    first_seen,  # [tiles] lane i sees keys below first_seen + i
    key_depth,  # [tiles] depth of the first key
    depth,  # [N]
    scale,  # of the products, times log2(e)
    window,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T: tl.constexpr,
    FOLD: tl.constexpr,  # query heads of one kv head that share a program
    BLOCK: tl.constexpr,  # keys
    WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(0)
    block = tl.program_id(1)
    lanes = tl.arange(0, T * FOLD)
    lane = lanes // FOLD
    head = block * FOLD + lanes % FOLD
    kv_head = block * FOLD // (H // K)
    row = tl.load(queries + tile * T + lane)
    used = row >= 0
    at = tl.maximum(row, 0).to(tl.int64)
    columns = tl.arange(0, D_BLOCK)
    inside = columns < D
    q_at = (at * H + head)[:, None] * D + columns[None, :]
    q_tile = tl.load(q + q_at, mask=used[:, None] & inside[None, :], other=0.0)
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    start = tl.load(key_start + tile)
    count = tl.load(key_count + tile)
    seen = tl.load(first_seen + tile) + lane
    base = tl.load(key_depth + tile)
    q_depth = tl.load(depth + at, mask=used, other=0)
    first = 0
    if WINDOW:
        nearest = tl.min(tl.where(used, q_depth, 2147483647))
        first = tl.maximum(nearest - window + 1 - base, 0) // BLOCK * BLOCK

    highest = tl.full((T * FOLD,), float("-inf"), tl.float32)
    total = tl.zeros((T * FOLD,), tl.float32)
    mixed = tl.zeros((T * FOLD, D_BLOCK), tl.float32)
    for block_start in range(first, count, BLOCK):
        number = block_start + tl.arange(0, BLOCK)
        rows = tl.load(key_rows + start + number, mask=number < count, other=-1)
        present = rows >= 0
        k_at = (tl.maximum(rows, 0).to(tl.int64) * K + kv_head)[:, None] * D + columns[None, :]
        here = present[:, None] & inside[None, :]
        k_tile = tl.load(k + k_at, mask=here, other=0.0)
        v_tile = tl.load(v + k_at, mask=here, other=0.0)
        if UPCAST:
            k_tile = k_tile.to(tl.float32)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        visible = present[None, :] & (number[None, :] < seen[:, None])
        if WINDOW:
            visible = visible & (q_depth[:, None] - (base + number)[None, :] < window)
        scores = tl.where(visible, scores, float("-inf"))
        rising = tl.maximum(highest, tl.max(scores, 1))
        level = tl.where(rising == float("-inf"), 0.0, rising)
        weights = tl.exp2(scores - level[:, None])
        decay = tl.exp2(highest - level)
        total = total * decay + tl.sum(weights, 1)
        if UPCAST:
            weights = weights.to(v_tile.dtype).to(tl.float32)
            v_tile = v_tile.to(tl.float32)
        mixed = mixed * decay[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile, input_precision="ieee")
        highest = rising
    found = total > 0
    mixed = mixed / tl.where(found, total, 1.0)[:, None]
    tl.store(out + q_at, mixed.to(out.dtype.element_ty), mask=used[:, None] & inside[None, :])
    tl.store(lse + at * H + head, tl.where(found, highest + tl.log2(tl.where(found, total, 1.0)), float("-inf")), mask=used)


@attrs.frozen(eq=False)
class TileTable:
    """Tiles of one width for one launch; see the kernel's arguments."""

    width: int
    queries: Tensor
    key_rows: Tensor
    key_start: Tensor
    key_count: Tensor
    first_seen: Tensor
    key_depth: Tensor

    @property
    def tiles(self) -> int:
        """How many."""
        return len(self.key_start)


class _TableBuilder:
    """Collects tiles on the host."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._queries: list[IntArray] = []
        self._keys: list[IntArray] = []
        self._numbers: list[tuple[int, int, int, int]] = []
        self._used = 0

    def keys(self, rows: IntArray) -> int:
        """Add rows that tiles may read as keys; the number of the first."""
        self._keys.append(rows)
        self._used += len(rows)
        return self._used - len(rows)

    def tile(self, queries: IntArray, start: int, count: int, first_seen: int, depth: int) -> None:
        """Add a tile of up to `width` lanes."""
        lanes = np.full(self.width, UNUSED, np.int32)
        lanes[: len(queries)] = queries
        self._queries.append(lanes)
        self._numbers.append((start, count, first_seen, depth))

    def table(self, device: torch.device) -> TileTable | None:
        """The table on the device; None when there are no tiles."""
        if not self._numbers:
            return None
        numbers = np.array(self._numbers, np.int32).T.copy()
        flat = np.concatenate([np.concatenate(self._queries), *self._keys, numbers.ravel()]).astype(np.int32)
        moved = torch.from_numpy(flat)
        if device.type == "cuda":
            moved = moved.pin_memory().to(device, non_blocking=True)
        lanes, keys = len(self._numbers) * self.width, self._used
        columns = moved[lanes + keys :].view(4, -1)
        return TileTable(self.width, moved[:lanes], moved[lanes : lanes + keys], *columns.unbind(0))


def content_table(layout: TreeLayout) -> TileTable | None:
    """Content rows causally, and rows after the cut against the whole of their content."""
    builder = _TableBuilder(CONTENT_TILE)
    for (start, cut_row, stop), index in zip(layout.pass_.segments, layout.content_index, strict=True):
        if not len(index):
            continue
        first = builder.keys(index)
        done = len(index) - (cut_row - start)
        for depth in range(done, len(index), CONTENT_TILE):
            count = min(depth + CONTENT_TILE, len(index))
            builder.tile(index[depth:count] - layout.stored, first, count, depth + 1, 0)
        for row in range(cut_row, stop, CONTENT_TILE):
            queries = np.arange(row, min(row + CONTENT_TILE, stop))
            builder.tile(queries, first, len(index), len(index), 0)
    return builder.table(layout.device)


def path_table(layout: TreeLayout) -> TileTable | None:
    """Rows after the cut against their own paths."""
    builder = _TableBuilder(PATH_TILE)
    for tiles in layout.path_tiles:
        count = tiles.keys.shape[1]
        first = builder.keys(tiles.keys.ravel())
        depths = layout.pass_.cut[layout.pass_.job[tiles.queries.max(axis=1)]]
        for number, (queries, depth) in enumerate(zip(tiles.queries, depths, strict=True)):
            builder.tile(queries, first + number * count, count, count - PATH_TILE + 1, int(depth))
    return builder.table(layout.device)


class TritonTreeAttention:
    """The attention of one pass. See `attention.TreeAttention`."""

    def __init__(self, layout: TreeLayout) -> None:
        self._content = content_table(layout)
        self._paths = path_table(layout)
        self._depth = torch.as_tensor(layout.pass_.depth, dtype=torch.int32, device=layout.device)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int | None = None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """See `attention.TreeAttention`."""
        q = q.contiguous()
        k, v = (k.contiguous(), v.contiguous()) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))
        content, content_lse = self._launch(self._content, q, k, v, scale, window)
        paths, path_lse = self._launch(self._paths, q, k, v, scale, window)
        share = 1 / (1 + torch.exp2(path_lse - content_lse))
        share = torch.where(path_lse == -math.inf, 1.0, share)[..., None]
        return torch.lerp(paths.float(), content.float(), share).to(q.dtype)

    def _launch(
        self, table: TileTable | None, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
        if table is None:
            return out, lse
        heads, head_dim, kv_heads = q.shape[1], q.shape[2], k.shape[1]
        assert heads % kv_heads == 0
        assert k.shape == v.shape
        fold, block, warps, stages = tile_shape(table.width, heads // kv_heads, head_dim)
        _attend[table.tiles, heads // fold](
            q,
            k,
            v,
            out,
            lse,
            table.queries,
            table.key_rows,
            table.key_start,
            table.key_count,
            table.first_seen,
            table.key_depth,
            self._depth,
            scale * math.log2(math.e),
            window or 0,
            H=heads,
            K=kv_heads,
            D=head_dim,
            D_BLOCK=triton.next_power_of_2(head_dim),
            T=table.width,
            FOLD=fold,
            BLOCK=block,
            WINDOW=window is not None,
            UPCAST=INTERPRETED,
            num_warps=warps,
            num_stages=stages,
        )
        return out, lse


def tile_shape(width: int, group: int, head_dim: int) -> Sequence[int]:
    """How many query heads a program folds into its lanes, keys per block, warps, and stages of the key pipeline."""
    wanted = 128 if head_dim <= 256 else 64
    fold = 1
    while group % (2 * fold) == 0 and width * fold * 2 <= wanted:
        fold *= 2
    if width == PATH_TILE:
        return fold, PATH_TILE, 4, 2
    return fold, 64 if head_dim <= 256 else 32, 8, 2
