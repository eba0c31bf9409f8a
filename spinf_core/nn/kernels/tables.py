"""Which rows one pass's attention tiles answer for, and which keys they read: made on the host, moved to the device once."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.nn.layout import PATH_TILE, UNUSED, TreeLayout
from spinf_core.nn.transfer import to_device
from spinf_core.stack import CONTENT_TILE, IntArray

Columns = NDArray[np.int32]
LEAST_ROOM = 16  # tiles


@attrs.frozen(eq=False)
class TileTables:
    """The tiles of one pass, on the device.

    Attributes:
        content: [5, A] tiles of up to `CONTENT_TILE` rows that lie one behind another, against their content: first row, rows,
            first entry of `content_keys` (where `in_place`, first key itself), keys, and how many of them the first row sees;
            each row behind it sees one more. Padding is in tiles without keys.
        content_keys: rows in the joint space. in_place: whether they lie one behind another in every tile.
        final: [A] 1 where nothing is left for `paths` to add.
        path_rows: [B, PATH_TILE] rows after the cut by lane, `UNUSED` elsewhere.
        paths: [3, B] tiles of those against their own paths: first entry of `path_keys`, keys, tokens before the cut.
        path_keys: rows in the joint space, `UNUSED` behind a path's end.
        depth: [N] of the pass.
    """

    content: Tensor
    content_keys: Tensor
    in_place: bool
    final: Tensor
    path_rows: Tensor
    paths: Tensor
    path_keys: Tensor
    depth: Tensor


def tile_arrays(layout: TreeLayout) -> dict[str, IntArray]:
    """The tables of a pass by their names, on the host."""
    content, final, keys = _content(layout)
    path_rows, paths, path_keys = _paths(layout)
    return {
        "content": content,
        "content_keys": keys,
        "final": final,
        "path_rows": path_rows,
        "paths": paths,
        "path_keys": path_keys,
        "depth": layout.pass_.depth,
    }


def tile_tables(layout: TreeLayout) -> TileTables:
    """The tables of a pass, on its device."""
    return TileTables(**to_device(tile_arrays(layout), layout.device), in_place=layout.kept is None)


def with_room(arrays: dict[str, IntArray]) -> dict[str, IntArray]:
    """The same with room for as many tiles as passes of this kind may need, a power of two; tiles too many have no rows."""
    padded = dict(arrays)
    for name, axis, filler in (
        ("content", 1, 0),
        ("final", 0, 0),
        ("path_rows", 0, UNUSED),
        ("paths", 1, 0),
        ("path_keys", 0, UNUSED),
    ):
        array = arrays[name]
        count = array.shape[axis]
        shape = list(array.shape)
        shape[axis] = max(LEAST_ROOM, 1 << (count - 1).bit_length()) if count else LEAST_ROOM
        padded[name] = np.full(shape, filler, np.int32)
        padded[name][(slice(None),) * axis + (slice(count),)] = array
    return padded


def _content(layout: TreeLayout) -> tuple[Columns, IntArray, IntArray]:
    """The content tiles: content rows causally, rows after the cut against the whole of their content; then padding."""
    tiles, final, keys = [], [], []
    used = stop = 0
    for (start, cut_row, stop), index in zip(layout.pass_.segments, layout.content_index, strict=True):
        length = len(index)
        if not length:
            continue
        at = int(index[0]) if layout.kept is None else used
        inside = np.arange(start, cut_row, CONTENT_TILE)
        after = np.arange(cut_row, stop, CONTENT_TILE)
        depth = inside - start + length - (cut_row - start)
        tiles += [
            _columns(inside, cut_row, at, np.minimum(depth + CONTENT_TILE, length), depth + 1),
            _columns(after, stop, at, length, length),
        ]
        final += [1] * len(inside) + [0] * len(after)
        keys.append(index)
        used += length
    padding = np.arange(stop, layout.rows, CONTENT_TILE)
    tiles.append(_columns(padding, layout.rows, 0, 0, 0))
    final += [1] * len(padding)
    joined = np.concatenate(keys) if layout.kept is not None and keys else np.empty(0, np.int32)
    return np.concatenate(tiles, axis=1), np.array(final, np.int32), joined


def _columns(
    first: NDArray[np.int64], stop: int, key: int, keys: int | NDArray[np.int64], seen: int | NDArray[np.int64]
) -> Columns:
    columns = np.empty((5, len(first)), np.int32)
    columns[0] = first
    columns[1] = np.minimum(CONTENT_TILE, stop - first)
    columns[2], columns[3], columns[4] = key, keys, seen
    return columns


def _paths(layout: TreeLayout) -> tuple[IntArray, Columns, IntArray]:
    """The tiles after the cut against their own paths."""
    queries, tiles, keys = [np.empty((0, PATH_TILE), np.int32)], [np.empty((3, 0), np.int32)], [np.empty(0, np.int32)]
    used = 0
    for group in layout.path_tiles:
        number, width = group.keys.shape
        columns = np.empty((3, number), np.int32)
        columns[0] = used + width * np.arange(number)
        columns[1] = width
        columns[2] = layout.pass_.cut[layout.pass_.job[group.queries.max(axis=1)]]
        queries.append(group.queries)
        tiles.append(columns)
        keys.append(group.keys.ravel())
        used += group.keys.size
    return np.concatenate(queries), np.concatenate(tiles, axis=1), np.concatenate(keys)
