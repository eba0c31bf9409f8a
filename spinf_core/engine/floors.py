"""The floor cache: a floor depends on the template, the options, the case rule and the model alone, so it is read once."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import attrs

from spinf_core.compiler.questions import FloorKey

_OVERHEAD = 600  # bytes of an entry beside its text and numbers
_NUMBER = 32  # bytes of a number and its place in a tuple


@attrs.frozen(eq=False)
class QuestionScore:
    """What was read for one question of O options.

    Attributes:
        logprob: [O] log of each option's own mass. p: [O] over the options, sums to 1.
        residual: 1 − the mass of the union of the options.
        finite: whether the model gave numbers.
    """

    logprob: tuple[float, ...]
    p: tuple[float, ...]
    residual: float
    finite: bool


class FloorCache:
    """Floors by key, least recently used out first.

    Args:
        max_bytes: about how much memory it may hold; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[FloorKey, tuple[QuestionScore, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """Memory held, about."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: FloorKey) -> QuestionScore | None:
        """The floor kept for a key."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: FloorKey, score: QuestionScore) -> None:
        """Keep a floor; one that is larger than the cache is not kept."""
        size = _OVERHEAD + 2 * len(key.template) + _NUMBER * 2 * len(score.p) + sum(80 + len(option) for option in key.options)
        if size > self._max_bytes:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size - (old[1] if old else 0)
            self._entries[key] = score, size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed
