"""The listed sizes: every pass and every block of the head has one of these row counts, each tried by the self-test."""

from __future__ import annotations

from bisect import bisect_left

import attrs

MULTIPLE = 16


@attrs.frozen
class Sizes:
    """Row counts, ascending multiples of `MULTIPLE`.

    Attributes:
        listed: eight to the octave from 64 up to the largest.
    """

    listed: tuple[int, ...]

    @classmethod
    def up_to(cls, largest: int) -> Sizes:
        """The list whose last size holds `largest` rows."""
        listed = [MULTIPLE, 2 * MULTIPLE, 3 * MULTIPLE]
        octave = 4 * MULTIPLE
        while True:
            step = max(MULTIPLE, octave // 8)
            for size in range(octave, 2 * octave, step):
                listed.append(size)
                if size >= largest:
                    return cls(tuple(listed))
            octave *= 2

    def fit(self, rows: int) -> int:
        """The smallest listed size of at least `rows`."""
        return self.listed[bisect_left(self.listed, rows)]

    @property
    def largest(self) -> int:
        """The last of them."""
        return self.listed[-1]
