"""The listed sizes: every pass and every block of the head has one of these row counts, each tried by the self-test."""

from __future__ import annotations

from bisect import bisect_left

import attrs

MULTIPLE = 16


@attrs.frozen
class Sizes:
    """Row counts, ascending multiples of `MULTIPLE`.

    Attributes:
        listed: `steps` to the octave up to what most passes are filled to, a quarter as many beyond.
    """

    listed: tuple[int, ...]

    @classmethod
    def up_to(cls, dense: int, largest: int = 0, steps: int = 8) -> Sizes:
        """The list that is dense up to `dense` rows and ends with the first size that holds `largest`.

        Fewer steps are fewer sizes to try in the self-test; more waste less on padding.
        """
        largest = max(dense, largest)
        listed = [MULTIPLE, 2 * MULTIPLE, 3 * MULTIPLE]
        octave = 4 * MULTIPLE
        while listed[-1] < largest:
            step = max(MULTIPLE, octave // (steps if octave < dense else steps // 4))
            listed += range(octave, 2 * octave, step)
            octave *= 2
        return cls(tuple(listed[: bisect_left(listed, largest) + 1]))

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
