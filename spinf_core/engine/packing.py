"""Lays parts of jobs back to back into passes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from spinf_core.compiler.jobs import Part
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import IntArray, Pass


@attrs.frozen(eq=False)
class Batch:
    """The parts that share a pass, each with its first row, and the pass."""

    parts: tuple[Part, ...]
    starts: tuple[int, ...]
    pass_: Pass

    def read_rows(self, number: int) -> IntArray:
        """[p] where the pairs of a part lie among the pass's reads."""
        rows = self.parts[number].pair_row + self.starts[number]
        return np.searchsorted(self.pass_.reads, rows).astype(np.int32)


def lay_out(parts: Sequence[Part], sizes: Sizes, axes: int = 1) -> Batch:
    """The pass of some parts, padded to a listed size."""
    total = sum(part.rows for part in parts)
    rows = sizes.fit(total)
    ids = np.zeros(rows, np.int32)
    depth = np.zeros(rows, np.int32)
    parent = np.full(rows, -1, np.int32)
    end = np.arange(1, rows + 1, dtype=np.int32)
    job = np.full(rows, -1, np.int32)
    segments = np.empty((len(parts), 3), np.int32)
    cut = np.empty(len(parts), np.int32)
    starts, reads = [], []
    start = 0
    for number, part in enumerate(parts):
        content, nodes = part.job.content, part.nodes
        count = len(content)
        cut_row, stop = start + count, start + part.rows
        ids[start:cut_row] = content
        ids[cut_row:stop] = part.job.token[nodes]
        depth[start:cut_row] = np.arange(count)
        depth[cut_row:stop] = part.job.depth[nodes] + count
        parent[start:cut_row] = np.arange(start - 1, cut_row - 1)
        if count:
            parent[start] = -1
        under = part.parent >= 0
        parent[cut_row:stop] = np.where(under, part.parent + cut_row, cut_row - 1 if count else -1)
        end[start:cut_row] = stop
        end[cut_row:stop] = part.end + cut_row
        job[start:stop] = number
        segments[number] = start, cut_row, stop
        cut[number] = count
        starts.append(start)
        reads.append(part.pair_row + start)
        start = stop
    pass_ = Pass(
        ids=ids,
        depth=depth,
        positions=np.repeat(depth[None], axes, axis=0),
        parent=parent,
        end=end,
        job=job,
        block=np.full(rows, -1, np.int32),
        segments=segments,
        cut=cut,
        base=np.full(len(parts), -1, np.int32),
        reads=np.unique(np.concatenate([*reads, np.empty(0, np.int32)])).astype(np.int32),
    )
    return Batch(tuple(parts), tuple(starts), pass_)
