"""Token tries in arrays: many token sequences, equal prefixes once, in pre-order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import attrs
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


@attrs.frozen(eq=False)
class Trie:
    """M nodes in pre-order, from S sequences of at most L tokens.

    Attributes:
        token: [M]. parent: [M] −1 at a root. depth: [M] 0 at a root. end: [M] end of the node's subtree, exclusive.
        node_at: [S, L] the node of each sequence's token at each position; undefined behind its end.
        length: [S].
    """

    token: IntArray
    parent: IntArray
    depth: IntArray
    end: IntArray
    node_at: IntArray
    length: IntArray

    def last(self, sequences: IntArray) -> IntArray:
        """The node of each sequence's last token; −1 for an empty sequence."""
        length = self.length[sequences]
        if not self.node_at.shape[1]:
            return np.full(len(sequences), -1, np.int32)
        return np.where(length > 0, self.node_at[sequences, length - 1], -1).astype(np.int32)


def build_trie(sequences: Sequence[Sequence[int]]) -> Trie:
    """The trie of the sequences; token ids are not negative, sequences may be empty or equal."""
    length = np.fromiter(map(len, sequences), np.int32, len(sequences))
    width = int(length.max(initial=0))
    matrix = np.full((len(sequences), width), -1, np.int32)
    matrix[np.arange(width) < length[:, None]] = np.fromiter(chain.from_iterable(sequences), np.int32, int(length.sum()))
    order = _lexicographic(matrix)
    rows, row_length = matrix[order], length[order]

    shared = np.zeros(len(rows), np.int64)  # leading tokens in common with the row before
    if width and len(rows) > 1:
        differs = rows[1:] != rows[:-1]
        shared[1:] = np.where(differs.any(1), differs.argmax(1), width)
    column = np.arange(width)
    new = (column >= shared[:, None]) & (column < row_length[:, None])
    count = new.sum(1)
    first = np.cumsum(count) - count  # the node that each row would start with
    total = int(count.sum())

    number = np.full(rows.shape, -1, np.int32)
    number[new] = np.arange(total, dtype=np.int32)
    node_at_row = np.maximum.accumulate(number, axis=0)
    breaks = np.where(shared[:, None] <= column, first[:, None], total)
    following = np.full(rows.shape, total, np.int64)
    following[:-1] = np.minimum.accumulate(breaks[::-1], axis=0)[::-1][1:]

    previous = np.full(rows.shape, -1, np.int32)
    previous[:, 1:] = node_at_row[:, :-1]
    depth = np.broadcast_to(column, rows.shape)
    node_at = np.empty_like(node_at_row)
    node_at[order] = node_at_row
    return Trie(
        token=rows[new],
        parent=previous[new],
        depth=depth[new].astype(np.int32),
        end=following[new].astype(np.int32),
        node_at=node_at,
        length=length,
    )


def _lexicographic(matrix: IntArray) -> NDArray[np.int64]:
    """The order that sorts rows; a row that is another's prefix, padded with −1, comes first."""
    if not matrix.size:
        return np.arange(len(matrix))
    big_endian = np.ascontiguousarray((matrix + 1).astype(">u4"))
    keys = big_endian.view(np.dtype((np.void, big_endian.shape[1] * 4))).ravel()
    return np.argsort(keys, kind="stable")
