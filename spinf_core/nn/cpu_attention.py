"""Tree attention on the CPU, by batched products on tiles.

Each row's content and its own path after the cut are attended to apart and joined by their log-sum-exps (Dao et al. 2022,
«FlashAttention», section 3.1). How many lanes and keys a tile has follows from the row's content and depth alone (see
`layout`), and the products of a batch are all of that shape, so that a row's bits do not depend on what else is in the pass.
Products run in the model's own dtype, for whose bfloat16 processors have units that torch's flash kernel leaves idle; softmax
is float32. Grouped query heads are folded into the lanes of a tile: their keys are read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.nn.activation import sigmoid
from spinf_core.nn.attention import Blocks
from spinf_core.nn.layout import NEVER, PATH_TILE, UNUSED, TreeLayout
from spinf_core.nn.linear import InputFormat, write
from spinf_core.stack import CONTENT_TILE

Rows = NDArray[np.integer[Any]]

BATCH_KEYS = 2048  # keys that the tiles of a batch read: what they are scored with stays in the processor's cache


@attrs.frozen(eq=False)
class Tiles:
    """A batch of B tiles of T query lanes that read K keys each.

    Attributes:
        queries: [B · T] rows of the pass; lanes that nothing stands for repeat one.
        keys: [B · K] rows of the joint space.
        places: [B · T] where a lane's result goes; the last place takes what nobody wants.
        unseen: [B, T, 1, M] −inf where a lane does not see one of the last M keys, 0 elsewhere.
        key_count: K.
        depth, stop: [B, T, 1] where each lane is, and the first key that it does not see, counted in keys.
        block: [B, T, 1] the key from which on a window hides nothing from it.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor
    unseen: Tensor
    key_count: int
    depth: Tensor
    stop: Tensor
    block: Tensor


@attrs.frozen(eq=False)
class _Asked:
    """What a layer asks, its heads apart: lanes [kv_heads, N, group · D], keys and values [kv_heads, P + N, D], and how their
    products are scored; see `attention.TreeAttention`."""

    lanes: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    softcap: float | None
    window: int | None


class TiledTreeAttention:
    """The attention of one pass; holds the masks and indices that its layers share. See `attention.TreeAttention`."""

    def __init__(self, layout: TreeLayout) -> None:
        segments = layout.pass_.segments.tolist()
        after = np.concatenate([np.empty(0, np.int32), *(np.arange(cut, stop) for _, cut, stop in segments)])
        self._after = _tensor(after)
        places = np.full(layout.rows, len(after))
        places[after] = np.arange(len(after))
        apart = tuple(_content_tiles(layout, None))
        self._content: dict[Blocks, tuple[Tiles, ...]] = {"apart": apart, "windowed": apart, "whole": apart}
        if layout.blocks is not None:
            self._content["whole"] = tuple(_content_tiles(layout, layout.blocks))
            self._content["windowed"] = tuple(
                attrs.evolve(tiles, block=torch.full_like(tiles.block, NEVER)) for tiles in self._content["whole"]
            )
        self._branches = tuple(_branch_tiles(layout, places, len(after)))
        self._paths = tuple(_path_tiles(layout, places, len(after)))
        self._windows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

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
        rows, heads, width = q.shape
        kv_heads = k.shape[1]
        group = heads // kv_heads
        exact = math.frexp(scale)[0] == 0.5  # a power of two changes no bit but the exponent's
        lanes = (q * scale if exact else q).view(rows, kv_heads, -1).transpose(0, 1).contiguous()
        keys = (k if past is None else torch.cat((past[0], k))).transpose(0, 1).contiguous()
        values = (v if past is None else torch.cat((past[1], v))).transpose(0, 1).contiguous()
        asked = _Asked(lanes, keys, values, 1.0 if exact else scale, softcap, window)
        out = lanes.new_zeros(kv_heads, rows + 1, lanes.shape[2])
        for tiles in self._content[blocks]:
            out.index_copy_(1, tiles.places, self._attend(tiles, asked)[0])
        if len(self._after):
            path, path_lse = self._gathered(self._paths, asked)
            seen, seen_lse = self._gathered(self._branches, asked)
            share = sigmoid(seen_lse - path_lse)
            joined = torch.lerp(path.float(), seen.float(), share)[:, :-1].to(q.dtype)
            out.index_copy_(1, self._after, joined.flatten(2))
        out = out[:, :rows].view(kv_heads, rows, group, width).transpose(0, 1)
        return write(out.reshape(rows, heads, width), output)

    def _gathered(self, batches: Sequence[Tiles], asked: _Asked) -> tuple[Tensor, Tensor]:
        """What the rows after the cut find in some tiles: [kv_heads, rows + 1, group, D], log-sum-exps, −inf for none."""
        lanes, width = asked.lanes, asked.keys.shape[2]
        kv_heads, group = len(lanes), lanes.shape[2] // width
        found = lanes.new_zeros(kv_heads, len(self._after) + 1, lanes.shape[2])
        lse = found.new_full((kv_heads, len(self._after) + 1, group), -math.inf, dtype=torch.float32)
        for tiles in batches:
            some, some_lse = self._attend(tiles, asked, lse=True)
            found.index_copy_(1, tiles.places, some)
            assert some_lse is not None
            lse.index_copy_(1, tiles.places, some_lse)
        return found.view(kv_heads, -1, group, width), lse[..., None]

    def _attend(self, tiles: Tiles, asked: _Asked, *, lse: bool = False) -> tuple[Tensor, Tensor | None]:
        """softmax(q kᵀ · scale) v of every lane: [kv_heads, B · T, group · D], and log-sum-exps [kv_heads, B · T, group]."""
        kv_heads, _, width = asked.keys.shape
        batch, count = tiles.unseen.shape[:2]
        group = asked.lanes.shape[2] // width
        q = asked.lanes.index_select(1, tiles.queries).view(kv_heads * batch, count * group, width)
        k, v = (
            each.index_select(1, tiles.keys).view(kv_heads * batch, tiles.key_count, width)
            for each in (asked.keys, asked.values)
        )
        scores = torch.bmm(q, k.transpose(1, 2)).float()
        if asked.scale != 1.0:
            scores *= asked.scale
        if asked.softcap is not None:
            scores = torch.tanh(scores / asked.softcap) * asked.softcap
        unseen, hidden = (tiles.unseen, None) if asked.window is None else self._window_mask(tiles, asked.window)
        by_lane = scores.view(kv_heads, batch, count, group, tiles.key_count)
        by_lane[..., tiles.key_count - unseen.shape[-1] :] += unseen
        shares = torch.softmax(scores, -1)
        found = torch.bmm(shares.to(v.dtype), v).view(kv_heads, batch * count, group * width)
        if not lse:
            return found, None
        sums = (scores.amax(-1) - shares.amax(-1).log()).view(kv_heads, batch * count, group)
        return found, sums if hidden is None else sums.masked_fill(hidden, -math.inf)

    def _window_mask(self, tiles: Tiles, window: int) -> tuple[Tensor, Tensor]:
        """As `Tiles.unseen`, for all keys; and the lanes that see nothing [B · T, 1], which are shown all lest they find no
        number."""
        name = (id(tiles), window)
        if name not in self._windows:
            key = torch.arange(tiles.key_count)
            unseen = (key >= tiles.stop) | ((key <= tiles.depth - window) & (key < tiles.block))
            hidden = unseen.all(-1, keepdim=True)
            mask = torch.zeros(unseen.shape).masked_fill_(unseen & ~hidden, -math.inf)
            self._windows[name] = mask[:, :, None], hidden.view(-1, 1)
        return self._windows[name]


def _tensor(values: Rows) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int64)


def _batches(
    queries: Rows,
    keys: Rows,
    depth: Rows,
    stop: Rows,
    places: Rows,
    nowhere: int,
    *,
    block: Rows | None = None,
    masked: int | None = None,
) -> Iterator[Tiles]:
    """Tiles of one shape, `BATCH_KEYS` keys together.

    Args:
        queries: [B, T] rows of the pass, `UNUSED` for lanes that nothing stands for. keys: [B, K].
        depth, stop: [B, T] of each lane and of the first key that it does not see, on the axis that keys are counted on.
        places: [N] where the result of a row goes. nowhere: where that of other lanes goes.
        block: [B, T] from which key on a window hides nothing; None: it hides what it hides.
        masked: how many of the last keys some lane may not see; None: T.
    """
    key_count = keys.shape[1]
    block = np.full(queries.shape, NEVER) if block is None else block
    used = queries != UNUSED
    stop = np.where(used, stop, key_count)
    unseen = np.arange(key_count - (masked or queries.shape[1]), key_count) >= stop[..., None]
    mask = np.where(unseen, np.float32(-np.inf), np.float32(0))
    going = np.where(used, places[queries], nowhere)
    step = max(1, BATCH_KEYS // key_count)
    for first in range(0, len(queries), step):
        some = slice(first, first + step)
        yield Tiles(
            queries=_tensor(np.maximum(queries[some], 0).ravel()),
            keys=_tensor(keys[some].ravel()),
            places=_tensor(going[some].ravel()),
            unseen=torch.as_tensor(mask[some])[:, :, None],
            key_count=key_count,
            depth=_tensor(depth[some])[..., None],
            stop=_tensor(stop[some])[..., None],
            block=_tensor(block[some])[..., None],
        )


def _content_tiles(layout: TreeLayout, blocks: Rows | None) -> Iterator[Tiles]:
    """The rows of contents by `CONTENT_TILE`, each against what of its content lies before it, and against its block."""
    if blocks is None:
        blocks = np.array([[NEVER], [0]]).repeat(layout.rows, 1)
    found: dict[tuple[int, int], list[tuple[Rows, Rows]]] = {}
    for (start, cut_row, _), index in zip(layout.pass_.segments.tolist(), layout.content_index, strict=True):
        done = len(index) - (cut_row - start)
        for first in range(done, len(index), CONTENT_TILE):
            last = min(first + CONTENT_TILE, len(index))
            rows = np.arange(first - done + start, last - done + start)
            last = max(last, int(blocks[1, rows].max()))
            key_count = first + -(-(last - first) // CONTENT_TILE) * CONTENT_TILE
            found.setdefault((first, key_count), []).append((rows, index[:last]))
    places = np.arange(layout.rows)
    for (first, key_count), tiles in sorted(found.items()):
        queries, keys = _stacked(tiles, key_count)
        depth = np.arange(first, first + CONTENT_TILE)[None].repeat(len(tiles), 0)
        stop, block = np.maximum(depth + 1, blocks[1, queries]), blocks[0, queries]
        yield from _batches(queries, keys, depth, stop, places, layout.rows, block=block, masked=key_count - first)


def _branch_tiles(layout: TreeLayout, places: Rows, nowhere: int) -> Iterator[Tiles]:
    """The rows after the cut by `CONTENT_TILE`, each against its whole content."""
    found: dict[int, list[tuple[Rows, Rows]]] = {}
    for (_, cut_row, stop), index in zip(layout.pass_.segments.tolist(), layout.content_index, strict=True):
        if not len(index):
            continue
        key_count = -(-len(index) // CONTENT_TILE) * CONTENT_TILE
        for first in range(cut_row, stop, CONTENT_TILE):
            found.setdefault(key_count, []).append((np.arange(first, min(first + CONTENT_TILE, stop)), index))
    for key_count, tiles in sorted(found.items()):
        queries, keys = _stacked(tiles, key_count)
        stop = np.array([[len(index)] * CONTENT_TILE for _, index in tiles])
        yield from _batches(queries, keys, layout.pass_.depth[queries], stop, places, nowhere)


def _path_tiles(layout: TreeLayout, places: Rows, nowhere: int) -> Iterator[Tiles]:
    """The rows after the cut, each against its own path there."""
    for tiles in layout.path_tiles:
        key_count = tiles.keys.shape[1]
        # What no lane sees is the path's own first row, so that no other job's numbers are read.
        keys = np.where(tiles.keys == UNUSED, tiles.keys[:, :1], tiles.keys)
        depth = np.arange(key_count - PATH_TILE, key_count)[None].repeat(len(keys), 0)
        yield from _batches(tiles.queries, keys, depth, depth + 1, places, nowhere)


def _stacked(tiles: Sequence[tuple[Rows, Rows]], key_count: int) -> tuple[Rows, Rows]:
    """Lanes' rows [B, CONTENT_TILE], `UNUSED` behind the last, and keys [B, key_count], the last one repeated."""
    queries = np.full((len(tiles), CONTENT_TILE), UNUSED, np.int64)
    keys = np.empty((len(tiles), key_count), np.int64)
    for number, (rows, index) in enumerate(tiles):
        queries[number, : len(rows)] = rows
        keys[number, : len(index)] = index
        keys[number, len(index) :] = index[-1]
    return queries, keys
