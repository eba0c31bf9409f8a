"""Which parts of which requests share the next pass: deficit round-robin by rows (Shreedhar and Varghese 1996)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from spinf_core.compiler.jobs import Part


class Work:
    """The parts that one request has left to run.

    Args:
        parts: taken one at a time, when a pass has room for them.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts: Iterator[Part] = iter(parts)
        self._next: Part | None = None
        self.deficit = 0
        """Rows that the request may still take before the others have had their turn; below 0: rows it owes them."""

    def peek(self) -> Part | None:
        """The next part; None when there is none left."""
        if self._next is None:
            self._next = next(self._parts, None)
        return self._next

    def begin_pass(self, now: float) -> None:
        """Note that a pass with one of the parts begins."""

    def end_launch(self) -> None:
        """Note that such a pass is launched."""

    def take(self) -> Part:
        """The next part, which is no longer waiting."""
        part = self.peek()
        assert part is not None
        self._next = None
        return part


class Scheduler:
    """Fills passes from whatever waits.

    Every pass begins with another request. Each may first take its fair share of the pass, then what room is left goes to
    whoever has parts that fit, at the expense of their later shares. A part that is larger than the budget runs alone, when
    its request comes first.

    Args:
        budget: rows that parts share a pass up to.
        share: whether parts of different requests may share a pass.
    """

    def __init__(self, budget: int, share: bool = True) -> None:
        self.budget = budget
        self.share = share
        self._waiting: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Work) -> None:
        """Let a request's parts wait; one that already waits stays where it is."""
        if work not in self._waiting:
            work.deficit = 0
            self._waiting.append(work)

    def remove(self, work: Work) -> None:
        """Forget a request's parts."""
        if work in self._waiting:
            self._waiting.remove(work)

    def next_pass(self) -> list[tuple[Work, Part]]:
        """The parts of the next pass; empty when nothing waits."""
        self._drop_finished()
        if not self._waiting:
            return []
        first = self._waiting[0]
        head = first.peek()
        assert head is not None
        self._waiting.rotate(-1)  # the next pass begins with the next request
        if head.rows > self.budget:
            return [(first, first.take())]
        order = [first, *(work for work in self._waiting if work is not first)] if self.share else [first]
        chosen: list[tuple[Work, Part]] = []
        room = self.budget
        for work in order:
            work.deficit = min(work.deficit + self.budget // len(order), self.budget)
        for within_share in (True, False):
            for work in order:
                while (part := work.peek()) is not None and part.rows <= room:
                    if within_share and part.rows > work.deficit:
                        break
                    chosen.append((work, work.take()))
                    work.deficit -= part.rows
                    room -= part.rows
        self._drop_finished()
        return chosen

    def _drop_finished(self) -> None:
        finished = [work for work in self._waiting if work.peek() is None]
        for work in finished:
            self._waiting.remove(work)
