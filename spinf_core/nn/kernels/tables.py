"""Which rows one pass's attention tiles answer for, and which keys they read: made on the host, moved to the device once."""

from __future__ import annotations

from bisect import bisect_left

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.nn.layout import PATH_TILE, UNUSED, TreeLayout
from spinf_core.nn.transfer import to_device
from spinf_core.stack import CONTENT_TILE, IntArray

STEP_KEYS = 64
"""Keys of a step on the rows' own paths: one `PATH_TILE` of each of four paths."""
SLOTS = STEP_KEYS // PATH_TILE
LEAST_ROOM = 16  # tiles or steps


@attrs.frozen(eq=False)
class TileTables:
    """The tiles of one pass, on the device. A path is a sequence of rows after the cut, known by a number.

    Attributes:
        tiles: [7, A] tiles of up to `CONTENT_TILE` rows that lie one behind another: first row, rows; first entry of
            `content_keys` (where `in_place` first key itself), keys, and how many of them the first row sees, each row behind
            it sees one more; first of the tile's steps, and steps. Padding is in tiles without keys and steps.
        content_keys: rows in the joint space. in_place: whether they lie one behind another in every tile.
        step_keys: [S, STEP_KEYS] rows in the joint space, `UNUSED` behind a path's end. A step reads the same stretch of
            `PATH_TILE` tokens of up to `SLOTS` different paths, so that each row sees keys of one slot of one step at a time.
        step_paths: [S, STEP_KEYS] the path that each key is read for. stretch: [S] its number, from 0 at the cut.
        row_path: [N] the path that a row reads, `UNUSED` in a content. depth: [N] of the pass.
        blocks: [2, N] see `TreeLayout.blocks`. block_keys: [A] keys of each tile where the rows of a block see each other.
            Both None where no row has a block.
    """

    tiles: Tensor
    content_keys: Tensor
    in_place: bool
    step_keys: Tensor
    step_paths: Tensor
    stretch: Tensor
    row_path: Tensor
    depth: Tensor
    blocks: Tensor | None = None
    block_keys: Tensor | None = None


def tile_arrays(layout: TreeLayout) -> dict[str, IntArray]:
    """The tables of a pass by their names, on the host."""
    row_path = _row_paths(layout)
    tiles, content_keys = _content(layout, row_path)
    arrays = {"tiles": tiles, "content_keys": content_keys, "depth": layout.pass_.depth}
    if layout.blocks is not None:
        last = np.maximum.reduceat(layout.blocks[1], tiles[0])
        arrays |= {"blocks": layout.blocks, "block_keys": np.maximum(tiles[3], last)}
    return arrays | {"row_path": row_path} | _steps(layout, tiles, row_path)


def tile_tables(layout: TreeLayout) -> TileTables:
    """The tables of a pass, on its device."""
    return TileTables(**to_device(tile_arrays(layout), layout.device), in_place=layout.kept is None)


def with_room(arrays: dict[str, IntArray]) -> dict[str, IntArray]:
    """The same with room for as many tiles as passes of this kind may need, a power of two; tiles too many have no rows."""
    padded = dict(arrays)
    fillers = (("tiles", 1, 0), ("block_keys", 0, 0), ("step_keys", 0, UNUSED), ("step_paths", 0, UNUSED), ("stretch", 0, 0))
    for name, axis, filler in fillers:
        if (array := arrays.get(name)) is None:
            continue
        count = array.shape[axis]
        shape = list(array.shape)
        shape[axis] = max(LEAST_ROOM, 1 << max(count - 1, 0).bit_length())
        padded[name] = np.full(shape, filler, np.int32)
        padded[name][(slice(None),) * axis + (slice(count),)] = array
    return padded


def _row_paths(layout: TreeLayout) -> IntArray:
    """[N] the path that each row after the cut reads, by its place among those of all groups; `UNUSED` in a content."""
    row_path = np.full(layout.rows, UNUSED, np.int32)
    paths = 0
    for group in layout.path_tiles:
        mine = group.queries != UNUSED
        row_path[group.queries[mine]] = np.broadcast_to(paths + np.arange(len(mine))[:, None], mine.shape)[mine]
        paths += len(mine)
    return row_path


def _content(layout: TreeLayout, row_path: IntArray) -> tuple[IntArray, IntArray]:
    """The tiles, all but their steps: content rows causally, rows after the cut against the whole of their content; padding."""
    tiles, keys = [], []
    # In pre-order the rows that read one path lie one behind another.
    begins = (np.flatnonzero(np.diff(row_path)) + 1).tolist()
    used = stop = 0
    for (start, cut_row, stop), index in zip(layout.pass_.segments, layout.content_index, strict=True):
        length = len(index)
        at = int(index[0]) if layout.kept is None and length else used
        inside = np.arange(start, cut_row, CONTENT_TILE)
        after = np.array(_even_tiles(begins, int(cut_row), int(stop)), np.int64)
        depth = inside - start + length - (cut_row - start)
        tiles += [
            _columns(inside, cut_row, at, np.minimum(depth + CONTENT_TILE, length), depth + 1),
            _columns(after, stop, at, length, length, np.diff(after, append=stop)),
        ]
        keys.append(index)
        used += length
    tiles.append(_columns(np.arange(stop, layout.rows, CONTENT_TILE), layout.rows, 0, 0, 0))
    joined = np.concatenate(keys) if layout.kept is not None and keys else np.empty(0, np.int32)
    return np.concatenate(tiles, axis=1), joined


def _even_tiles(begins: list[int], first: int, stop: int) -> list[int]:
    """Where tiles of the rows [first, stop) begin: as few as hold them, much alike, and parted between paths where that is
    possible, for a tile takes a step more for every `SLOTS` paths."""
    found = []
    for tiles in range(-(-(stop - first) // CONTENT_TILE), 0, -1):
        found.append(first)
        last = min(first + CONTENT_TILE, stop)
        least = max(first + 1, stop - (tiles - 1) * CONTENT_TILE)
        even = first + -(-(stop - first) // tiles)
        at = bisect_left(begins, even)
        between = [place for place in begins[max(at - 1, 0) : at + 1] if least <= place <= last]
        first = min(between, key=lambda place: abs(place - even), default=even)
    return found


def _columns(
    first: NDArray[np.int64],
    stop: int,
    key: int,
    keys: int | NDArray[np.int64],
    seen: int | NDArray[np.int64],
    rows: int | NDArray[np.int64] = CONTENT_TILE,
) -> IntArray:
    columns = np.zeros((7, len(first)), np.int32)
    columns[0] = first
    columns[1] = np.minimum(rows, stop - first)
    columns[2], columns[3], columns[4] = key, keys, seen
    return columns


def _steps(layout: TreeLayout, tiles: IntArray, row_path: IntArray) -> dict[str, IntArray]:
    """The steps of each tile, which are written into `tiles`."""
    stretches, key_at, flat = [], [], [np.empty(0, np.int32)]
    used = 0
    for group in layout.path_tiles:
        number, width = group.keys.shape
        stretches.append(np.full(number, group.number + 1))
        key_at.append(used + width * np.arange(number))
        flat.append(group.keys.ravel())
        used += group.keys.size
    if not used:
        empty = np.empty((0, STEP_KEYS), np.int32)
        return {"step_keys": empty, "step_paths": empty, "stretch": np.empty(0, np.int32)}
    rows = np.flatnonzero(row_path != UNUSED)
    tile = _tile_of(rows, tiles)
    read = row_path[rows]  # in pre-order the rows of a tile that read one path lie one behind another
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(read) != 0) | (np.diff(tile) != 0))))
    # One entry for each stretch of each path of each tile, by tile and stretch.
    counts = np.concatenate(stretches)[read[begins]]
    stretch = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    path, of_tile = np.repeat(read[begins], counts), np.repeat(tile[begins], counts)
    order = np.lexsort((stretch, of_tile))
    path, of_tile, stretch = path[order], of_tile[order], stretch[order]
    first = np.flatnonzero(np.concatenate(([True], (np.diff(of_tile) != 0) | (np.diff(stretch) != 0))))
    sizes = np.diff(np.append(first, len(path)))
    rank = np.arange(len(path)) - np.repeat(first, sizes)
    steps = -(-sizes // SLOTS)
    step_from = np.concatenate(([0], np.cumsum(steps)))
    step, slot = np.repeat(step_from[:-1], sizes) + rank // SLOTS, rank % SLOTS

    lanes = np.arange(PATH_TILE)
    keys = np.full((step_from[-1], SLOTS, PATH_TILE), UNUSED, np.int32)
    keys[step, slot] = np.concatenate(flat)[(np.concatenate(key_at)[path] + stretch * PATH_TILE)[:, None] + lanes]
    step_paths = np.full(keys.shape, UNUSED, np.int32)
    step_paths[step, slot] = path[:, None]
    tiles[6] = np.bincount(of_tile[first], steps, tiles.shape[1])
    tiles[5] = np.cumsum(tiles[6]) - tiles[6]
    return {
        "step_keys": keys.reshape(-1, STEP_KEYS),
        "step_paths": step_paths.reshape(-1, STEP_KEYS),
        "stretch": np.repeat(stretch[first], steps).astype(np.int32),
    }


def _tile_of(rows: NDArray[np.int64], tiles: IntArray) -> NDArray[np.int64]:
    """The number of the tile that each row is in; tiles are in the order of their rows."""
    return np.searchsorted(tiles[0], rows, side="right") - 1
