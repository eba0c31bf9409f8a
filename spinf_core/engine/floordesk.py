"""The floor desk: floors that several waiting requests need are read once, for all of them and for the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from spinf_core.compiler.floors import Floors
from spinf_core.compiler.jobs import Part, build_job, split
from spinf_core.compiler.options import OptionPlan
from spinf_core.compiler.questions import FloorKey
from spinf_core.engine.floors import FloorCache
from spinf_core.engine.reading import Values
from spinf_core.engine.request import JobRun, Ticket
from spinf_core.engine.scheduler import Work

Order = tuple[OptionPlan, tuple[int, ...]]
"""What makes a job of a floor: the plan and the branch."""


class FloorDesk(Work):
    """Work that belongs to no request: the floors that somebody waits for. Its owner serializes the calls.

    Args:
        cache: asked first, and filled.
        budget: about how many rows of floors make one job.
        max_rows: rows of the largest part.
    """

    def __init__(self, cache: FloorCache, budget: int, max_rows: int) -> None:
        super().__init__(())
        self._cache = cache
        self._budget = budget
        self._max_rows = max_rows
        self._wanted: dict[FloorKey, Order] = {}
        self._alone: set[FloorKey] = set()  # wanted again, each in a job of its own, after one that failed
        self._waiting: dict[FloorKey, list[Ticket]] = {}
        self._first: dict[FloorKey, Ticket] = {}  # who asked for it first, and is charged
        self._running: dict[int, tuple[JobRun, dict[FloorKey, Order]]] = {}
        self._bos: tuple[int, ...] = ()

    def order(self, ticket: Ticket, floors: Floors, keys: Iterable[FloorKey]) -> None:
        """Give the request those of its floors that are cached, and let it wait for the others."""
        self._bos = floors.bos
        for key in keys:
            known = self._cache.get(key)
            if known is not None:
                ticket.floors[key] = known
                continue
            if key not in self._waiting:
                number = floors.numbers[key]
                self._wanted[key] = floors.plans[number], floors.branches[number]
                self._first[key] = ticket
            self._waiting.setdefault(key, []).append(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Drop the floors that only this request wanted and that are not running yet."""
        for key in ticket.wanted.numbers if ticket.wanted else ():
            tickets = self._waiting.get(key, [])
            if ticket in tickets:
                tickets.remove(ticket)
                if not tickets and self._wanted.pop(key, None) is not None:
                    del self._waiting[key], self._first[key]
                    self._alone.discard(key)

    def peek(self) -> Part | None:
        """The next part; makes a job of what is wanted when those before have been taken."""
        part = super().peek()
        if part is None and self._wanted:
            self._parts = self._make_parts()
            part = super().peek()
        return part

    def _make_parts(self) -> Iterator[Part]:
        orders: dict[FloorKey, Order] = {}
        rows = 0
        for key, (plan, branch) in self._wanted.items():
            if orders and (rows >= self._budget or key in self._alone):
                break
            orders[key] = plan, branch
            rows += self._budget if key in self._alone else len(branch) + plan.tokens_after_first
        for key in orders:
            del self._wanted[key]
        job = build_job(self._bos, [branch for _, branch in orders.values()], [plan for plan, _ in orders.values()])
        self._running[id(job)] = JobRun(job), orders
        return split(job, self._budget if job.rows <= self._budget else self._max_rows)

    def fill(self, part: Part, values: Values) -> set[Ticket]:
        """Take the values of a part that ran; the requests that got a floor from it."""
        if id(part.job) not in self._running:  # another part of its job has failed
            return set()
        run, orders = self._running[id(part.job)]
        keys = list(orders)
        run.fill(part, values)
        self._charge(part.rows, keys)
        if not run.complete:
            return set()
        del self._running[id(part.job)]
        for key in keys:
            del self._first[key]
        self._alone.difference_update(keys)
        served: set[Ticket] = set()
        for key, score in zip(keys, run.scores().questions(), strict=True):
            if score.finite:
                self._cache.put(key, score)
            for ticket in self._waiting.pop(key, ()):
                ticket.floors[key] = score
                served.add(ticket)
        return served

    def _charge(self, rows: int, keys: list[FloorKey]) -> None:
        """Lay rows to the requests that asked first, by how many of the floors each asked for."""
        left = rows
        asked = Counter(self._first[key] for key in keys)
        for number, (ticket, count) in enumerate(asked.items(), 1):
            share = left if number == len(asked) else rows * count // len(keys)
            ticket.floor_rows += share
            left -= share

    def fail(self, part: Part) -> set[Ticket]:
        """The requests that waited for a part that could not be run; they get no floor. The rest of its job is dropped.

        Where the job was of several floors, the fault may be one's alone: each is wanted again, in a job of its own.
        """
        _, orders = self._running.pop(id(part.job), (None, {}))
        upcoming = super().peek()
        if upcoming is not None and upcoming.job is part.job:
            self._parts, self._next = iter(()), None
        if len(orders) > 1:
            again = {key: order for key, order in orders.items() if self._waiting[key]}
            for key in orders.keys() - again.keys():
                del self._waiting[key], self._first[key]
            self._wanted |= again
            self._alone |= again.keys()
            return set()
        self._alone -= orders.keys()
        for key in orders:
            del self._first[key]
        return {ticket for key in orders for ticket in self._waiting.pop(key)}
