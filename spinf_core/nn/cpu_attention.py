"""Tree attention on the CPU, by torch's flash kernel on tiles.

Each row's content and its own path after the cut are attended to apart and joined by their log-sum-exps (Dao et al. 2022,
«FlashAttention», section 3.1). The shape of every tile and a row's lane in it follow from the row's depth alone (see `layout`),
so that a row's bits do not depend on what else is in the pass. Grouped query heads are folded into the lanes of a tile: their
keys are read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.nn.activation import sigmoid
from spinf_core.nn.layout import PATH_TILE, UNUSED, TreeLayout
from spinf_core.nn.linear import InputFormat, write
from spinf_core.stack import CONTENT_TILE, IntArray

BATCH_KEYS = 512  # tiles that read at most this many keys are batched over jobs; longer ones read their keys in place
GATHER_ROWS = 1 << 17  # most keys gathered for one batch of tiles

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@attrs.frozen(eq=False)
class Tiles:
    """A batch of B tiles of T query lanes that read K keys each.

    Attributes:
        queries: [B·T] rows of the pass.
        keys: [B, K] rows in the joint space behind which a row of zeros stands; or the first of K rows that lie one behind
            another (B tiles read the same).
        key_count: K.
        rows: [·] rows of the pass that this batch answers for, a slice where they lie one behind another …
        lanes: [·] … and their lanes in the flattened [B·T], likewise.
        depth: [B·T] depth of each lane where all keys are seen but for the window; None where the last T keys are the lanes.
    """

    queries: Tensor
    keys: Tensor | int
    key_count: int
    rows: Tensor
    lanes: Tensor
    depth: Tensor | None = None


class FlashTreeAttention:
    """The attention of one pass; holds the masks and indices that its layers share. See `attention.TreeAttention`."""

    def __init__(self, layout: TreeLayout) -> None:
        self._content = tuple(_content_tiles(layout))
        self._paths = tuple(_path_batches(layout))
        self._branches = tuple(_branch_batches(layout))
        self._masks: dict[tuple[int, int, int | None, torch.dtype], Tensor] = {}

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
        zeros = k.new_zeros(1, *k.shape[1:])
        keys = torch.cat((k, zeros) if past is None else (past[0], k, zeros))
        values = torch.cat((v, zeros) if past is None else (past[1], v, zeros))
        out = q.new_zeros(q.shape)
        path_lse = q.new_zeros(q.shape[:2], dtype=torch.float32)
        for width, batches in ((CONTENT_TILE, self._content), (PATH_TILE, self._paths)):
            for tiles in batches:
                mask = self._causal_mask(width, q.shape[1] // k.shape[1], tiles.key_count, window, q)
                rows_out, lse = _attend(q, keys, values, tiles, width, scale, mask)
                out.index_copy_(0, tiles.rows, rows_out)
                path_lse.index_copy_(0, tiles.rows, lse)
        content_out = torch.zeros_like(out)
        content_lse = torch.full_like(path_lse, -math.inf)
        for tiles in self._branches:
            window_mask, hidden = _window_mask(tiles, q.shape[1] // k.shape[1], window, q)
            rows_out, lse = _attend(q, keys, values, tiles, CONTENT_TILE, scale, window_mask)
            if hidden is not None:
                lse = lse.masked_fill(hidden.index_select(0, tiles.lanes)[:, None], -math.inf)
            content_out.index_copy_(0, tiles.rows, rows_out)
            content_lse.index_copy_(0, tiles.rows, lse)
        share = sigmoid(content_lse - path_lse)[..., None]
        return write(torch.lerp(out.float(), content_out.float(), share).to(out.dtype), output)

    def _causal_mask(self, width: int, group: int, key_count: int, window: int | None, like: Tensor) -> Tensor:
        """[group · width, key_count]: 0 where lane i sees a key, −inf elsewhere; the last `width` keys are the lanes."""
        name = (width, group, window, like.dtype)
        mask = self._masks.get(name)
        if mask is None:
            longest = max(tiles.key_count for tiles in (*self._content, *self._paths))
            keys = torch.arange(width - longest, width, device=like.device)
            behind = torch.arange(width, device=like.device)[:, None] - keys
            unseen = behind < 0 if window is None else (behind < 0) | (behind >= window)
            mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device).masked_fill_(unseen, -math.inf)
            self._masks[name] = mask = mask.repeat(group, 1)
        return mask[:, mask.shape[1] - key_count :]


def _window_mask(tiles: Tiles, group: int, window: int | None, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The mask of branch rows against their content [B, 1, group · T, K], and which lanes see nothing of it [B·T].

    None where the window hides nothing. The kernel answers 0, and a log-sum-exp of 0, for a lane that sees no key.
    """
    assert tiles.depth is not None
    if window is None or int(tiles.depth.max()) < window:
        return None, None
    last_unseen = tiles.depth - window
    unseen = torch.arange(tiles.key_count, device=like.device) <= last_unseen[:, None]
    mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device).masked_fill_(unseen, -math.inf)
    mask = mask.view(-1, 1, CONTENT_TILE, tiles.key_count).repeat(1, 1, group, 1)
    return mask, last_unseen >= tiles.key_count - 1


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, width: int, scale: float, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of the rows that tiles answer for: out [·, H, D] and the log-sum-exps [·, H]."""
    _, heads, head_dim = q.shape
    kv_heads, index, key_count = keys.shape[1], tiles.keys, tiles.key_count
    group = heads // kv_heads
    batch = len(tiles.queries) // width
    lanes = q.index_select(0, tiles.queries).view(batch, width, kv_heads, group, head_dim)
    lanes = lanes.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * width, head_dim)

    def read(source: Tensor) -> Tensor:
        some = source[index:][:key_count] if isinstance(index, int) else source.index_select(0, index.view(-1))
        return some.view(-1, key_count, kv_heads, head_dim).transpose(1, 2).expand(batch, -1, -1, -1)

    out, lse = _flash(lanes, read(keys), read(values), 0.0, False, attn_mask=mask, scale=scale)
    out = out.view(batch, kv_heads, group, width, head_dim).permute(0, 3, 1, 2, 4).reshape(-1, heads, head_dim)
    lse = lse.view(batch, kv_heads, group, width).permute(0, 3, 1, 2).reshape(-1, heads)
    return out.index_select(0, tiles.lanes), lse.index_select(0, tiles.lanes)


def _tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=device)


def _content_tiles(layout: TreeLayout) -> Iterator[Tiles]:
    zero = layout.stored + layout.rows
    batches: dict[int, list[tuple[IntArray, IntArray]]] = {}  # tile number -> (rows of its lanes, keys) of each job
    for (start, cut_row, _), index in zip(layout.pass_.segments, layout.content_index, strict=True):
        if cut_row == start:
            continue
        done = len(index) - (cut_row - start)
        for number in range(done // CONTENT_TILE, -(-len(index) // CONTENT_TILE)):
            stop = (number + 1) * CONTENT_TILE
            lanes = index[number * CONTENT_TILE : stop] - layout.stored
            keys = np.full(stop, zero, np.int32)
            keys[: len(index)] = index[:stop]
            if stop <= BATCH_KEYS:
                batches.setdefault(number, []).append((lanes, keys))
            elif stop <= len(index) and done == 0:
                yield _content_batch([lanes], int(index[0]), stop, layout.device)
            else:
                yield _content_batch([lanes], keys[None], stop, layout.device)
    for number, jobs in sorted(batches.items()):
        stop = (number + 1) * CONTENT_TILE
        step = max(1, GATHER_ROWS // stop)
        for first in range(0, len(jobs), step):
            some = jobs[first : first + step]
            yield _content_batch([lanes for lanes, _ in some], np.stack([keys for _, keys in some]), stop, layout.device)


def _content_batch(lanes: list[IntArray], keys: IntArray | int, key_count: int, device: torch.device) -> Tiles:
    queries = np.stack([np.resize(rows, CONTENT_TILE) for rows in lanes])
    used = [np.arange(len(rows)) + batch * CONTENT_TILE for batch, rows in enumerate(lanes)]
    return Tiles(
        queries=_tensor(queries.reshape(-1), device),
        keys=keys if isinstance(keys, int) else _tensor(keys, device),
        key_count=key_count,
        rows=_tensor(np.concatenate(lanes), device),
        lanes=_tensor(np.concatenate(used), device),
    )


def _path_batches(layout: TreeLayout) -> Iterator[Tiles]:
    zero = layout.stored + layout.rows
    for tiles in layout.path_tiles:
        key_count = tiles.keys.shape[1]
        keys = np.where(tiles.keys == UNUSED, zero, tiles.keys)
        step = max(1, GATHER_ROWS // key_count)
        for first in range(0, len(keys), step):
            queries = tiles.queries[first : first + step].reshape(-1)
            lanes = np.flatnonzero(queries != UNUSED)
            yield Tiles(
                queries=_tensor(np.maximum(queries, 0), layout.device),
                keys=_tensor(keys[first : first + step], layout.device),
                key_count=key_count,
                rows=_tensor(queries[lanes], layout.device),
                lanes=_tensor(lanes, layout.device),
            )


def _branch_batches(layout: TreeLayout) -> Iterator[Tiles]:
    """The rows after the cut of each job, in batches of `CONTENT_TILE` lanes, against its whole content."""
    for (start, cut_row, stop), index in zip(layout.pass_.segments, layout.content_index, strict=True):
        if cut_row == stop or not len(index):
            continue
        count = -(-(stop - cut_row) // CONTENT_TILE) * CONTENT_TILE
        rows = np.minimum(np.arange(cut_row, cut_row + count, dtype=np.int32), stop - 1)
        in_place = len(index) == cut_row - start
        yield Tiles(
            queries=_tensor(rows, layout.device),
            keys=int(start) + layout.stored if in_place else _tensor(index[None], layout.device),
            key_count=len(index),
            rows=_tensor(np.arange(cut_row, stop), layout.device),
            lanes=_tensor(np.arange(stop - cut_row), layout.device),
            depth=_tensor(layout.pass_.depth[rows], layout.device),
        )
