"""Rows of texts as lines of aligned columns, for the tables that people read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Each row as a line: every column as wide as its widest cell, two spaces between, nothing behind the last."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
