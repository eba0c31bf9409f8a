"""What a service has done since it began."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Statistics:
    """Counters since the service began.

    Attributes:
        requests: finished, by outcome: `ok` or an error's code.
        passes, rows, padding: passes run, their rows, and rows of padding.
        busy_seconds: spent in passes.
        questions: scored.
        waiting: requests accepted and not finished.
        floors: floors in the cache. floor_bytes: memory that they take.
    """

    requests: Mapping[str, int]
    passes: int
    rows: int
    padding: int
    busy_seconds: float
    questions: int
    waiting: int
    floors: int
    floor_bytes: int


class Counters:
    """Counts. Its owner serializes the calls."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._passes = self._rows = self._padding = self._questions = 0
        self._busy = 0.0

    def count_request(self, outcome: str, questions: int = 0) -> None:
        """Count a request that is finished, and the questions that were scored."""
        self._requests[outcome] = self._requests.get(outcome, 0) + 1
        self._questions += questions

    def count_pass(self, rows: int, padding: int, seconds: float) -> None:
        """Count a pass that ran."""
        self._passes += 1
        self._rows += rows
        self._padding += padding
        self._busy += seconds

    @property
    def rows_per_second(self) -> float:
        """Of the passes so far; a guess before there are any."""
        return self._rows / self._busy if self._busy else 1000.0

    def statistics(self, *, waiting: int, floors: int, floor_bytes: int) -> Statistics:
        """The counts, beside what there is at this moment."""
        return Statistics(
            requests=dict(self._requests),
            passes=self._passes,
            rows=self._rows,
            padding=self._padding,
            busy_seconds=self._busy,
            questions=self._questions,
            waiting=waiting,
            floors=floors,
            floor_bytes=floor_bytes,
        )
