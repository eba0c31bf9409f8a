"""The state that stacks made of `nn` keep: per layer, values of stored rows (keys, values) and of kept rows (recurrences)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.nn.layout import KeptPaths
from spinf_core.stack import IntArray, Pass, State

Index = NDArray[np.int64]


@attrs.frozen(eq=False)
class LayerState:
    """One layer's part.

    Attributes:
        stored: tensors [P, …] with a value for every stored row, such as keys and values.
        kept: tensors [R, …] with a value for every kept row, such as recurrent state.
    """

    stored: tuple[Tensor, ...] = ()
    kept: tuple[Tensor, ...] = ()


def store(values: tuple[Tensor, ...], past: tuple[Tensor, ...] | None, index: Tensor) -> tuple[Tensor, ...]:
    """Values [N, …] of a pass's rows behind those [P, …] of its past, at `index` into the joint space (see `keep_paths`)."""
    joined = values if past is None else tuple(map(torch.cat, zip(past, values, strict=True)))
    return tuple(each.index_select(0, index) for each in joined)


class PathState(State):
    """Kept rows, the paths that lead to them, and every layer's values on those paths."""

    def __init__(self, paths: KeptPaths, layers: Sequence[LayerState]) -> None:
        self.paths = paths
        self.layers = tuple(layers)
        self.rows = len(paths.cut)

    @property
    def bytes(self) -> int:
        """Device memory held by the layers' values."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (*layer.stored, *layer.kept))

    def fork(self, rows: Sequence[int]) -> PathState:
        """See `State.fork`. Stored rows that no chosen path needs are dropped."""
        chosen = np.asarray(rows, dtype=np.int64)
        paths = KeptPaths(
            content=self.paths.content[chosen],
            tails=tuple(self.paths.tails[row] for row in chosen),
            cut=self.paths.cut[chosen],
            stored=self.paths.stored,
        )
        paths, used = _compact(paths)
        layers = []
        for layer in self.layers:
            layers.append(LayerState(_select(layer.stored, used), _select(layer.kept, chosen)))
        return PathState(paths, layers)

    def free(self) -> None:
        """See `State.free`."""
        self.layers = ()
        self.rows = 0


def _select(tensors: tuple[Tensor, ...], rows: Index) -> tuple[Tensor, ...]:
    return tuple(values.index_select(0, torch.as_tensor(rows, device=values.device)) for values in tensors)


def _compact(paths: KeptPaths) -> tuple[KeptPaths, Index]:
    """The same paths over only the stored rows that they need, and which those were."""
    content = [np.arange(first, first + count) for first, count in paths.content]
    used = np.unique(np.concatenate([*content, *paths.tails, np.empty(0, np.int64)]).astype(np.int64))
    moved = paths.content.copy()
    moved[:, 0] = np.where(paths.content[:, 1] > 0, np.searchsorted(used, paths.content[:, 0]), 0)
    tails = tuple(np.searchsorted(used, tail).astype(np.int32) for tail in paths.tails)
    return KeptPaths(content=moved, tails=tails, cut=paths.cut, stored=len(used)), used


def keep_paths(
    pass_: Pass, content_index: Sequence[IntArray], previous: IntArray, kept: KeptPaths | None, rows: Sequence[int]
) -> tuple[KeptPaths, Index]:
    """Where the paths of rows of a pass will lie in a new state.

    Args:
        pass_: the pass.
        content_index, previous: of its `TreeLayout`.
        kept: the paths of its past.
        rows: rows of the pass to keep.

    Returns:
        The new paths, and the rows in the joint space (past, then pass) to store for them, in order: [P].
    """
    stored = kept.stored if kept else 0
    placed: list[IntArray] = []
    count = 0
    content_at: dict[int, int] = {}
    for job in sorted({int(pass_.job[row]) for row in rows}):
        content_at[job] = count
        placed.append(content_index[job])
        count += len(content_index[job])
    tail_at: dict[int, int] = {}
    tail_rows: list[int] = []

    def place(row: int) -> int:
        if row not in tail_at:
            tail_at[row] = count + len(tail_rows)
            tail_rows.append(row)
        return tail_at[row]

    content = np.zeros((len(rows), 2), np.int32)
    tails = []
    for number, row in enumerate(rows):
        job = int(pass_.job[row])
        cut = int(pass_.cut[job])
        length = min(int(pass_.depth[row]) + 1, cut)
        content[number] = content_at[job], length
        tail: list[int] = []
        at, left = int(row) + stored, int(pass_.depth[row]) + 1 - length
        while left and at >= stored:
            tail.append(at)
            at, left = int(previous[at - stored]), left - 1
        if left:
            assert kept is not None
            tail.extend(kept.tails[pass_.base[job]][:left][::-1])
        tails.append(np.array([place(int(row)) for row in reversed(tail)], np.int32))
    index = np.concatenate([*placed, np.array(tail_rows, np.int32)]).astype(np.int64)
    cuts = np.array([pass_.cut[pass_.job[row]] for row in rows], np.int32)
    return KeptPaths(content=content, tails=tuple(tails), cut=cuts, stored=len(index)), index
