"""The index arrays by which tree attention gathers the rows of one pass; made once per pass, shared by its layers.

Rows are named in one space: stored rows of the past first [0, P), then the rows of the pass [P, P + N), then one row of zeros
[P + N] that fills the unused lanes of a tile.

What a row's arithmetic may depend on is its own path alone. So content rows sit in tiles of `CONTENT_TILE` lanes by depth, and
a row after the cut sits in the lane of a `PATH_TILE` by its depth after the cut, between its own ancestors and any of its
descendants: neither its lane nor the number of keys that its tile reads depends on its siblings.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch
from torch import Tensor

from spinf_core.stack import CONTENT_TILE, IntArray, Pass

PATH_TILE = 16
BATCH_KEYS = 512  # tiles that read at most this many keys are batched over jobs; longer ones read their keys in place
GATHER_ROWS = 1 << 17  # most keys gathered for one batch of tiles


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
class Tiles:
    """A batch of B tiles of T query lanes that read K keys each.

    Attributes:
        queries: [B·T] rows of the pass, without P.
        keys: [B, K] rows in the joint space, or the first of K rows that lie one behind another (B is 1).
        key_count: K.
        rows: [·] rows of the pass that this batch answers for …
        lanes: [·] … and their lanes in the flattened [B·T].
    """

    queries: Tensor
    keys: Tensor | int
    key_count: int
    rows: Tensor
    lanes: Tensor


@attrs.frozen(eq=False)
class BranchRows:
    """The rows after the cut of one job, in batches of `CONTENT_TILE` lanes, against its whole content.

    Attributes:
        start, stop: rows of the pass.
        queries: [B·T] rows of the pass, the last one repeated.
        keys: as in `Tiles`, B being 1.
        key_count: tokens of the content.
        depth: [B·T] depth of each lane.
    """

    start: int
    stop: int
    queries: Tensor
    keys: Tensor | int
    key_count: int
    depth: Tensor


@attrs.frozen(eq=False)
class TreeLayout:
    """Everything that tree attention and recurrent layers need to know about one pass.

    Attributes:
        rows: N. stored: P.
        content: content rows by tiles. paths: rows after the cut against their own paths. branches: the same against contents.
        content_index: per job, its content's rows in the joint space by depth.
        previous: [N] the row before each on its path in the joint space, −1 at depth 0.
        pass_: the pass. kept_rows: R, kept rows of its past.
    """

    rows: int
    stored: int
    content: tuple[Tiles, ...]
    paths: tuple[Tiles, ...]
    branches: tuple[BranchRows, ...]
    content_index: tuple[IntArray, ...]
    previous: IntArray
    pass_: Pass
    kept_rows: int
    device: torch.device

    @classmethod
    def build(cls, pass_: Pass, kept: KeptPaths | None, device: torch.device) -> TreeLayout:
        """Lay out a pass over the kept paths of a past.

        Raises:
            ValueError: a job continues a content elsewhere than at the end of a tile, or has rows after the cut while
                content is missing.
        """
        if (pass_.block >= 0).any():
            raise ValueError("tree attention does not place blocks of rows that see each other")
        stored = kept.stored if kept else 0
        content_index = tuple(_content_rows(pass_, kept, job, stored) for job in range(len(pass_.segments)))
        previous = _previous(pass_, kept, stored)
        zero = stored + pass_.rows
        return cls(
            rows=pass_.rows,
            stored=stored,
            content=tuple(_content_tiles(pass_, content_index, stored, zero, device)),
            paths=tuple(_path_tiles(pass_, kept, previous, stored, zero, device)),
            branches=tuple(_branch_rows(pass_, content_index, stored, device)),
            content_index=content_index,
            previous=previous,
            pass_=pass_,
            kept_rows=len(kept.cut) if kept else 0,
            device=device,
        )

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


def _tensor(values: IntArray, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=device)


def _content_tiles(
    pass_: Pass, content_index: tuple[IntArray, ...], stored: int, zero: int, device: torch.device
) -> list[Tiles]:
    batches: dict[int, list[tuple[IntArray, IntArray]]] = {}  # tile number -> (lanes' rows, keys) of each job
    tiles = []
    for job, index in enumerate(content_index):
        start, cut_row, _ = pass_.segments[job]
        if cut_row == start:
            continue
        done = len(index) - (cut_row - start)
        for tile in range(done // CONTENT_TILE, -(-len(index) // CONTENT_TILE)):
            first, last = tile * CONTENT_TILE, (tile + 1) * CONTENT_TILE
            lanes = index[first:last] - stored
            if last <= BATCH_KEYS:
                keys = np.full(last, zero, np.int32)
                keys[: len(index[:last])] = index[:last]
                batches.setdefault(tile, []).append((lanes, keys))
            elif last <= len(index) and done == 0:
                tiles.append(_content_batch([lanes], int(index[0]), last, device))
            else:
                keys = np.full(last, zero, np.int32)
                keys[: len(index)] = index[:last]
                tiles.append(_content_batch([lanes], keys[None], last, device))
    for tile, jobs in sorted(batches.items()):
        step = max(1, GATHER_ROWS // ((tile + 1) * CONTENT_TILE))
        for first in range(0, len(jobs), step):
            some = jobs[first : first + step]
            keys = np.stack([keys for _, keys in some])
            tiles.append(_content_batch([lanes for lanes, _ in some], keys, (tile + 1) * CONTENT_TILE, device))
    return tiles


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


def _path_tiles(
    pass_: Pass, kept: KeptPaths | None, previous: IntArray, stored: int, zero: int, device: torch.device
) -> list[Tiles]:
    """One tile per row that ends a leaf's path or a full tile; the first such row at or below a row answers for it."""
    after = np.concatenate([np.arange(cut_row, stop) for _, cut_row, stop in pass_.segments] or [np.empty(0, int)])
    if not len(after):
        return []
    depth = pass_.depth[after] - pass_.cut[pass_.job[after]]
    ends = after[(depth % PATH_TILE == PATH_TILE - 1) | (pass_.end[after] == after + 1)]
    answering = np.searchsorted(ends, after)  # in pre-order a row's first child comes right behind it
    end_depth = pass_.depth[ends] - pass_.cut[pass_.job[ends]]

    tiles = []
    for tile in range(int(end_depth.max()) // PATH_TILE + 1):
        chosen = np.flatnonzero(end_depth // PATH_TILE == tile)
        if not len(chosen):
            continue
        key_count = (tile + 1) * PATH_TILE
        keys = _paths(ends[chosen], end_depth[chosen], key_count, pass_, kept, previous, stored, zero)
        step = max(1, GATHER_ROWS // key_count)
        for first in range(0, len(chosen), step):
            some = chosen[first : first + step]
            mine = (answering >= some[0]) & (answering <= some[-1]) & (depth // PATH_TILE == tile)
            rows = after[mine]
            batch = np.searchsorted(some, answering[mine])
            queries = np.repeat(ends[some], PATH_TILE)
            lanes = batch * PATH_TILE + depth[mine] % PATH_TILE
            queries[lanes] = rows
            tiles.append(
                Tiles(
                    queries=_tensor(queries, device),
                    keys=_tensor(keys[first : first + step], device),
                    key_count=key_count,
                    rows=_tensor(rows, device),
                    lanes=_tensor(lanes, device),
                )
            )
    return tiles


def _paths(
    ends: IntArray,
    depth: IntArray,
    width: int,
    pass_: Pass,
    kept: KeptPaths | None,
    previous: IntArray,
    stored: int,
    zero: int,
) -> IntArray:
    """[B, width] the rows after the cut on the path of each end, by depth, in the joint space; `zero` behind the end."""
    paths = np.full((len(ends), width), zero, np.int32)
    row, at = ends + stored, depth.copy()
    live = np.arange(len(ends))
    while len(live):
        paths[live, at[live]] = row[live]
        row[live] = previous[row[live] - stored]
        at[live] -= 1
        live = live[(at[live] >= 0) & (row[live] >= stored)]
    for index in np.flatnonzero(at >= 0):  # the rest of the path lies in the past
        assert kept is not None
        tail = kept.tails[pass_.base[pass_.job[ends[index]]]]
        paths[index, : at[index] + 1] = tail[: at[index] + 1]
    return paths


def _branch_rows(pass_: Pass, content_index: tuple[IntArray, ...], stored: int, device: torch.device) -> list[BranchRows]:
    groups = []
    for (start, cut_row, stop), index in zip(pass_.segments, content_index, strict=True):
        if cut_row == stop or not len(index):
            continue
        count = -(-(stop - cut_row) // CONTENT_TILE) * CONTENT_TILE
        rows = np.minimum(np.arange(cut_row, cut_row + count), stop - 1)
        in_place = len(index) == cut_row - start
        groups.append(
            BranchRows(
                start=int(cut_row),
                stop=int(stop),
                queries=_tensor(rows, device),
                keys=int(start) + stored if in_place else _tensor(index[None], device),
                key_count=len(index),
                depth=_tensor(pass_.depth[rows], device),
            )
        )
    return groups
