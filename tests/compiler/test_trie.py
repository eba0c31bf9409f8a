"""Tries against nested dicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from spinf_core.compiler.trie import build_trie

# Few distinct tokens, so that sequences share prefixes, repeat and contain one another; and large ids.
SEQUENCES = st.lists(st.lists(st.sampled_from([0, 1, 2, 255, 256, 65_536, 2**31 - 2]), max_size=6), max_size=12)


def nested(sequences: Sequence[Sequence[int]]) -> dict[int, Any]:
    root: dict[int, Any] = {}
    for sequence in sequences:
        at = root
        for token in sequence:
            at = at.setdefault(token, {})
    return root


def walk(tree: dict[int, Any], path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], int]]:
    """Paths in pre-order, children by token, each with the number of nodes in its subtree."""
    for token in sorted(tree):
        below = list(walk(tree[token], (*path, token)))
        yield (*path, token), len(below) + 1
        yield from below


@given(SEQUENCES)
@example([])
@example([[]])
@example([[], []])
@example([[1, 2], [1], [1, 2], [], [1, 2, 0]])
def test_a_trie_holds_each_prefix_once_in_pre_order(sequences: list[list[int]]) -> None:
    trie = build_trie(sequences)
    expected = list(walk(nested(sequences)))
    number = {path: node for node, (path, _) in enumerate(expected)}

    assert trie.token.tolist() == [path[-1] for path, _ in expected]
    assert trie.depth.tolist() == [len(path) - 1 for path, _ in expected]
    assert trie.parent.tolist() == [number.get(path[:-1], -1) for path, _ in expected]
    assert trie.end.tolist() == [node + size for node, (_, size) in enumerate(expected)]


@given(SEQUENCES)
@example([[], [3]])
def test_every_sequence_finds_its_nodes(sequences: list[list[int]]) -> None:
    trie = build_trie(sequences)
    number = {path: node for node, (path, _) in enumerate(walk(nested(sequences)))}

    assert trie.length.tolist() == [len(sequence) for sequence in sequences]
    for row, sequence in enumerate(sequences):
        nodes = [number[tuple(sequence[: stop + 1])] for stop in range(len(sequence))]
        assert trie.node_at[row, : len(sequence)].tolist() == nodes
    everyone = np.arange(len(sequences), dtype=np.int32)
    assert trie.last(everyone).tolist() == [number.get(tuple(sequence), -1) for sequence in sequences]
