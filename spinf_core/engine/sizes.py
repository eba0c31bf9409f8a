"""The listed sizes: every pass and every block of the head has one of these row counts, each tried by the self-test."""

from __future__ import annotations

from bisect import bisect_left

import attrs

MULTIPLE = 16


@attrs.frozen
class Sizes:
    """Row counts, ascending multiples of `MULTIPLE`.

    Attributes:
        listed: eight to the octave up to what most passes are filled to, two beyond.
    """

    listed: tuple[int, ...]

    @classmethod
    def up_to(cls, dense: int, largest: int = 0, least: int = MULTIPLE) -> Sizes:
        """The list from `least` rows, dense up to `dense`, that ends with the first size that holds `largest`."""
        largest = max(dense, largest, least)
        listed = [MULTIPLE, 2 * MULTIPLE, 3 * MULTIPLE]
        octave = 4 * MULTIPLE
        while listed[-1] < largest:
            step = max(MULTIPLE, octave // 8) if octave < dense else octave // 2
            listed += range(octave, 2 * octave, step)
            octave *= 2
        return cls(tuple(size for size in listed[: bisect_left(listed, largest) + 1] if size >= least))

    def fit(self, rows: int) -> int:
        """The smallest listed size of at least `rows`.

        Raises:
            ValueError: more rows than the largest size.
        """
        if rows > self.largest:
            raise ValueError(f"{rows} rows are more than the largest size, {self.largest}")
        return self.listed[bisect_left(self.listed, rows)]

    @property
    def largest(self) -> int:
        """The last of them."""
        return self.listed[-1]
