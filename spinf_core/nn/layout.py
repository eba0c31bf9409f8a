"""Which rows one pass's rows see, in arrays; made once per pass, shared by its layers.

Rows are named in one space: stored rows of the past first [0, P), then the rows of the pass [P, P + N).

What a row's arithmetic may depend on is its own path alone. So content rows sit in tiles of `CONTENT_TILE` lanes by depth, and
a row after the cut sits in the lane of a `PATH_TILE` by its depth after the cut, between its own ancestors and any of its
descendants: neither its lane nor the number of keys that its tile reads depends on its siblings.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
import torch
from torch import Tensor

from spinf_core.nn.transfer import to_device
from spinf_core.stack import CONTENT_TILE, IntArray, Pass

PATH_TILE = 16
UNUSED = -1
"""In place of a row: a lane or a key that nothing stands for."""
NEVER = np.iinfo(np.int32).max
"""In place of a depth that lies behind all others."""


def rows_to_read(pass_: Pass) -> IntArray | None:
    """The rows for which alone a last layer has to end, where that spares some; else None.

    They are the pass's reads and, behind those, as many more that their number is one of the listed sizes of every device,
    whatever its budget: a multiple of 128 up to 1,024 rows, beyond that four sizes to the octave.
    """
    count = len(pass_.reads)
    if count == 0:
        return None
    step = max(128, (1 << (count - 1).bit_length()) // 8)
    listed = -(-count // step) * step
    if listed >= pass_.rows:
        return None
    return np.concatenate((pass_.reads, np.full(listed - count, pass_.reads[0], np.int32)))


@attrs.frozen(eq=False)
class KeptPaths:
    """Where the paths of the R kept rows lie among the P stored rows of a state.

    Attributes:
        content: [R, 2] first stored row and number of content rows of each path.
        tails: per kept row, its stored rows after the cut by depth.
        cut: [R] the cut of the content; a path with fewer content rows was kept inside its content.
        stored: P.
    """

    content: IntArray
    tails: tuple[IntArray, ...]
    cut: IntArray
    stored: int


@attrs.frozen(eq=False)
class PathTiles:
    """Tiles of `PATH_TILE` lanes that lie one behind another on a path after the cut, those of one number in a group.

    Attributes:
        number: of the tile on the path, from 0; it reads (number + 1) · PATH_TILE keys.
        queries: [B, PATH_TILE] rows of the pass that the tile answers for, `UNUSED` elsewhere.
        keys: [B, (number + 1) · PATH_TILE] rows of the path by depth in the joint space, `UNUSED` behind its end.
    """

    number: int
    queries: IntArray
    keys: IntArray


@attrs.frozen(eq=False)
class TreeLayout:
    """Everything that tree attention and recurrent layers need to know about one pass.

    Attributes:
        pass_: the pass. kept: the paths of its past, or None. device: of the model.
        content_index: per job, its content's rows in the joint space by depth.
        previous: [N] the row before each on its path in the joint space, −1 at depth 0.
        blocks: [2, N] the depth at which each row's block begins and that behind its end, `NEVER` and 0 for a row without;
            None where no row has one.
    """

    pass_: Pass
    kept: KeptPaths | None
    device: torch.device
    content_index: tuple[IntArray, ...]
    previous: IntArray
    blocks: IntArray | None

    @classmethod
    def build(cls, pass_: Pass, kept: KeptPaths | None, device: torch.device) -> TreeLayout:
        """Lay out a pass over the kept paths of a past.

        Raises:
            ValueError: a job continues a content elsewhere than at the end of a tile, or has rows after the cut while
                content is missing; or the rows of a block do not lie one behind another in a content.
        """
        stored = kept.stored if kept else 0
        content_index = tuple(_content_rows(pass_, kept, job, stored) for job in range(len(pass_.segments)))
        return cls(pass_, kept, device, content_index, _previous(pass_, kept, stored), _blocks(pass_))

    @cached_property
    def on_device(self) -> dict[str, Tensor]:
        """The pass's `ids` [N], `positions` [A, N] and `reads` [R] on the model's device, int32."""
        pass_ = self.pass_
        return to_device({"ids": pass_.ids, "positions": pass_.positions, "reads": pass_.reads}, self.device)

    @property
    def rows(self) -> int:
        """N, padding included."""
        return self.pass_.rows

    @property
    def stored(self) -> int:
        """P."""
        return self.kept.stored if self.kept else 0

    @property
    def kept_rows(self) -> int:
        """R, kept rows of the past."""
        return len(self.kept.cut) if self.kept else 0

    @cached_property
    def path_tiles(self) -> tuple[PathTiles, ...]:
        """One tile per row that ends a leaf's path or a full tile; the first such row at or below a row answers for it."""
        return tuple(_path_tiles(self))

    def taps(self, width: int) -> IntArray:
        """[N, width] where a short convolution finds the `width` inputs before each row on its path, nearest last.

        Indexes the kept rows' taps [R · width] (R kept rows of the past, each its own last `width` inputs, nearest last), then
        the rows of the pass [N], then one row of zeros, which stands for what lies before depth 0.
        """
        kept = self.kept_rows * width
        zero = kept + self.rows
        before = np.arange(-1, kept - 1, dtype=np.int32)
        before[::width] = zero
        roots = np.full(self.rows, zero, np.int32)
        in_job = self.pass_.job >= 0
        base = self.pass_.base[self.pass_.job[in_job]] if len(self.pass_.base) else np.empty(0, np.int32)
        roots[in_job] = np.where(base >= 0, base * width + width - 1, zero)
        table = np.concatenate((before, np.where(self.pass_.parent >= 0, self.pass_.parent + kept, roots), [zero]))
        columns = np.empty((self.rows, width), np.int32)
        at = np.arange(kept, zero)
        for column in range(width - 1, -1, -1):
            at = table[at]
            columns[:, column] = at
        return columns


def _content_rows(pass_: Pass, kept: KeptPaths | None, job: int, stored: int) -> IntArray:
    start, cut_row, stop = pass_.segments[job]
    own = np.arange(start, cut_row, dtype=np.int32) + stored
    base = pass_.base[job]
    if kept is None or base < 0:
        index = own
    else:
        first, count = kept.content[base]
        if len(own) and count % CONTENT_TILE:
            raise ValueError(f"job {job} continues its content after {count} rows, not at the end of a tile of {CONTENT_TILE}")
        index = np.concatenate((np.arange(first, first + count, dtype=np.int32), own))
    if stop > cut_row and len(index) != pass_.cut[job]:
        raise ValueError(f"job {job} has {len(index)} of the {pass_.cut[job]} content rows that its branches follow")
    return index


def _previous(pass_: Pass, kept: KeptPaths | None, stored: int) -> IntArray:
    """Parents in the joint space: a root whose job has a base hangs on that base's last row."""
    previous = np.where(pass_.parent >= 0, pass_.parent + stored, -1).astype(np.int32)
    if kept is None:
        return previous
    for job, base in enumerate(pass_.base):
        if base < 0:
            continue
        start, _, stop = pass_.segments[job]
        tail = kept.tails[base]
        last = tail[-1] if len(tail) else kept.content[base].sum() - 1
        roots = start + np.flatnonzero(pass_.parent[start:stop] < 0)
        previous[roots] = last
    return previous


def _blocks(pass_: Pass) -> IntArray | None:
    rows = np.flatnonzero(pass_.block >= 0)
    if not len(rows):
        return None
    job, block = pass_.job[rows], pass_.block[rows]
    begins = np.concatenate(([True], (np.diff(rows) != 1) | (np.diff(job) != 0) | (np.diff(block) != 0)))
    number = np.cumsum(begins) - 1
    if len(np.unique(np.stack((job, block)), axis=1).T) < number[-1] + 1 or (pass_.depth[rows] >= pass_.cut[job]).any():
        raise ValueError("the rows of a block have to lie one behind another in a content")
    found = np.zeros((2, pass_.rows), np.int32)
    found[0] = NEVER
    first = pass_.depth[rows[begins]]
    found[:, rows] = first[number], (first + np.bincount(number))[number]
    return found


def _path_tiles(layout: TreeLayout) -> list[PathTiles]:
    pass_ = layout.pass_
    after = np.concatenate([np.arange(cut_row, stop) for _, cut_row, stop in pass_.segments] or [np.empty(0, int)])
    if not len(after):
        return []
    depth = pass_.depth[after] - pass_.cut[pass_.job[after]]
    ends = after[(depth % PATH_TILE == PATH_TILE - 1) | (pass_.end[after] == after + 1)]
    answering = np.searchsorted(ends, after)  # in pre-order a row's first child comes right behind it
    end_depth = pass_.depth[ends] - pass_.cut[pass_.job[ends]]
    tiles = []
    for number in range(int(end_depth.max()) // PATH_TILE + 1):
        chosen = np.flatnonzero(end_depth // PATH_TILE == number)
        if not len(chosen):
            continue
        mine = end_depth[answering] // PATH_TILE == number
        queries = np.full((len(chosen), PATH_TILE), UNUSED, np.int32)
        queries[np.searchsorted(chosen, answering[mine]), depth[mine] % PATH_TILE] = after[mine]
        keys = _paths(layout, ends[chosen], end_depth[chosen], (number + 1) * PATH_TILE)
        tiles.append(PathTiles(number, queries, keys))
    return tiles


def _paths(layout: TreeLayout, ends: IntArray, depth: IntArray, width: int) -> IntArray:
    """[B, width] the rows after the cut on the path of each end, by depth, in the joint space."""
    stored, pass_ = layout.stored, layout.pass_
    before = np.append(np.maximum(layout.previous - stored, UNUSED), np.int32(UNUSED))  # the last entry answers for `UNUSED`
    back = np.empty((width, len(ends)), np.int32)
    back[0] = ends
    for step in range(1, width):
        before.take(back[step - 1], out=back[step], mode="wrap")
    steps = depth[:, None] - np.arange(width)
    paths = np.where(steps >= 0, back[steps, np.arange(len(ends))[:, None]], UNUSED)
    if layout.kept is not None:
        past = (steps >= 0) & (paths == UNUSED)
        paths[paths != UNUSED] += stored
        for index in np.flatnonzero(past[:, 0]):
            tail = layout.kept.tails[pass_.base[pass_.job[ends[index]]]]
            paths[index, past[index]] = tail[: past[index].sum()]
    return paths
