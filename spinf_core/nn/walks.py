"""How recurrent layers run over one pass, in arrays: contents in chunks, then walks along the paths after the cut.

A walk starts from the state at the cut, or from that of a row which another walk has saved, and goes down one path to its end:
a leaf, or a row whose state is wanted. Rows that several walks pass through are worked out by each of them, by the same
operations, unless saving the state where paths part costs less. A saved state is float32, as on the way, so that what is saved
moves no bit: it may depend on siblings, which a row's result may not.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from spinf_core.nn.layout import TreeLayout
from spinf_core.stack import IntArray

SAVED = 16
"""A state is saved where paths part if that spares walks at least this many rows: writing and reading it costs about half."""

APART = 4
"""Rows between two saved states of a path, so that paths that part at every row neither fill the memory nor queue up."""

NOWHERE = -1

Flags = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Runs:
    """C runs over consecutive content rows from a chunk's beginning.

    Attributes:
        first, stop: [C] the rows.
        origin: [C] the kept row of the past whose state comes before, `NOWHERE` for zeros.
        target: [C] where the state behind the last row goes.
        answers: [C] whether the outputs of its rows are this run's; another run answers for them otherwise.
    """

    first: IntArray
    stop: IntArray
    origin: IntArray
    target: IntArray
    answers: Flags


@attrs.frozen(eq=False)
class Walks:
    """W walks that may run at once.

    Attributes:
        start, stop: [W] each walk's rows in the plan's `rows`.
        own: [W] the first of those that this walk answers for, up to its last.
        source: [W] the state before its first row.
        target: [W] where the state behind its last row goes, `NOWHERE` for nowhere.
    """

    start: IntArray
    own: IntArray
    stop: IntArray
    source: IntArray
    target: IntArray


@attrs.frozen(eq=False)
class RecurrencePlan:
    """What runs for one pass, the same for each of its recurrent layers.

    Attributes:
        states: how many states are held while a layer runs: first those at the end of each of the J jobs' contents, then
            those of rows.
        bases: [J] the kept row of the past whose state a job begins with where it has no content in the pass; else `NOWHERE`.
        runs: over contents.
        rows: rows of the pass, walk by walk.
        padding: rows of the pass that belong to no job.
        levels: walks; those of a level start from states of the jobs or of the levels before.
        kept: [K] which states are those of the rows to keep; None where nothing is kept.
    """

    states: int
    bases: IntArray
    runs: Runs
    rows: IntArray
    padding: IntArray
    levels: tuple[Walks, ...]
    kept: IntArray | None

    @classmethod
    def build(cls, layout: TreeLayout, keep: Sequence[int] | IntArray | None = None) -> RecurrencePlan:
        """Plan a pass.

        Args:
            layout: of the pass.
            keep: rows of the pass whose states are wanted.
        """
        pass_ = layout.pass_
        jobs = len(pass_.segments)
        kept_rows = np.asarray([] if keep is None else keep, dtype=np.int32)
        after = np.zeros(layout.rows, bool)
        for _, cut_row, stop in pass_.segments:
            after[cut_row:stop] = True
        saved = _parting(layout, after)
        saved[kept_rows] = True
        saved &= after
        slot = np.full(layout.rows, NOWHERE, np.int32)
        slot[saved] = jobs + np.arange(int(saved.sum()), dtype=np.int32)
        states = jobs + int(saved.sum())
        runs, states = _runs(layout, kept_rows[~after[kept_rows]], slot, states)
        rows, levels = _walks(layout, after, saved, slot)
        has_content = pass_.segments[:, 1] > pass_.segments[:, 0]
        return cls(
            states=states,
            bases=np.where(has_content, NOWHERE, pass_.base).astype(np.int32),
            runs=runs,
            rows=rows,
            padding=np.flatnonzero(pass_.job < 0).astype(np.int32),
            levels=levels,
            kept=None if keep is None else slot[kept_rows],
        )


def _parting(layout: TreeLayout, after: Flags) -> Flags:
    """[N] rows after the cut where paths part and a saved state spares at least `SAVED` rows."""
    parent, end = layout.pass_.parent, layout.pass_.end
    number = np.arange(layout.rows)
    under = after & (parent >= 0)
    under[under] = after[parent[under]]
    children = np.bincount(parent[under], minlength=layout.rows)
    # In pre-order an only child comes right behind its parent, so that a chain of them lies in one piece.
    begins = ~under
    begins[under] = children[parent[under]] > 1
    chain = number - np.maximum.accumulate(np.where(begins, number, 0)) + 1
    leaves = np.concatenate(([0], np.cumsum(after & (end == number + 1))))
    chosen = np.zeros(layout.rows, bool)
    unsaved = np.zeros(layout.rows, np.int64)  # at rows where paths part: the rows since a saved state
    for row in np.flatnonzero(children > 1).tolist():
        above = int(parent[row - chain[row] + 1])
        rows = int(chain[row]) + (int(unsaved[above]) if above >= 0 else 0)
        chosen[row] = rows >= APART and (leaves[end[row]] - leaves[row] - 1) * rows >= SAVED
        unsaved[row] = 0 if chosen[row] else rows
    return chosen


def _runs(layout: TreeLayout, kept: IntArray, slot: IntArray, states: int) -> tuple[Runs, int]:
    """A run over each content, and one more up to each kept row inside a content; `slot` is filled in for kept rows."""
    pass_ = layout.pass_
    found: list[tuple[int, int, int, int, bool]] = []
    for job, (start, cut_row, _) in enumerate(pass_.segments):
        if cut_row > start:
            found.append((start, cut_row, pass_.base[job], job, True))
            slot[cut_row - 1] = job
    for row in kept:
        if slot[row] == NOWHERE:
            job = pass_.job[row]
            found.append((pass_.segments[job, 0], row + 1, pass_.base[job], states, False))
            slot[row] = states
            states += 1
    table = np.array(found, np.int32).reshape(-1, 5).T
    return Runs(first=table[0], stop=table[1], origin=table[2], target=table[3], answers=table[4].astype(bool)), states


def _walks(layout: TreeLayout, after: Flags, saved: Flags, slot: IntArray) -> tuple[IntArray, tuple[Walks, ...]]:
    pass_ = layout.pass_
    number = np.arange(layout.rows)
    ends = np.flatnonzero(after & (saved | (pass_.end == number + 1)))
    if not len(ends):
        return np.empty(0, np.int32), ()
    # In pre-order the rows between two ends are a chain, the last piece of the path to the second.
    own_row = np.maximum(np.concatenate(([0], ends[:-1] + 1)), pass_.segments[pass_.job[ends], 1])
    at = pass_.parent[own_row]
    climbed = []
    shared = np.zeros(len(ends), np.int64)  # rows above `own_row` that the walk passes through
    live = np.flatnonzero(at >= 0)
    live = live[after[at[live]] & ~saved[at[live]]]
    while len(live):
        climbed.append((live, at[live]))
        shared[live] += 1
        at[live] = pass_.parent[at[live]]
        live = live[at[live] >= 0]
        live = live[after[at[live]] & ~saved[at[live]]]
    stop = np.cumsum(shared + ends + 1 - own_row)
    own = stop - (ends + 1 - own_row)
    start = own - shared
    rows = np.repeat(own_row - own, stop - start) + np.arange(stop[-1])
    for above, (live, found) in enumerate(climbed):
        rows[own[live] - 1 - above] = found

    on_saved = at >= 0
    on_saved[on_saved] = saved[at[on_saved]]
    source = np.where(on_saved, slot[at], pass_.job[ends])
    target = np.where(saved[ends], slot[ends], NOWHERE)
    before = np.where(on_saved, np.searchsorted(ends, at), NOWHERE)  # the walk that ends where this one starts
    level = np.zeros(len(ends), np.int64)
    while not np.array_equal(deeper := np.where(on_saved, level[before] + 1, 0), level):
        level = deeper
    levels = []
    for which in range(int(level.max()) + 1):
        chosen = np.flatnonzero(level == which)
        columns = (each[chosen].astype(np.int32) for each in (start, own, stop, source, target))
        levels.append(Walks(*columns))
    return rows.astype(np.int32), tuple(levels)
