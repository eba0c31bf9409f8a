"""The scoring service: packing across requests, floors, fairness, cancellation, faults."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import attrs
import pytest
import torch

from spinf_core.compiler.compile import Compiler
from spinf_core.compiler.jobs import split
from spinf_core.compiler.questions import FloorKey
from spinf_core.engine import service as service_module
from spinf_core.engine.floordesk import FloorDesk
from spinf_core.engine.probes import Probe
from spinf_core.engine.scheduler import Scheduler, Work
from spinf_core.engine.service import ScoringService
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import Rejected
from spinf_core.testing.toy import ToyModel

from .conftest import public_scores, request_body, settings_with, toy_loaded


class GatedModel(ToyModel):
    """A toy whose passes wait for a gate, so that requests pile up behind one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.passes: list[int] = []

    def forward(self, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        self.entered.set()
        assert self.gate.wait(20)
        self.passes.append(int((pass_.job >= 0).sum()))
        return super().forward(pass_, past, keep)


@pytest.fixture
def service():
    service = ScoringService(toy_loaded())
    yield service
    service.close()


def bodies(count: int) -> list[dict[str, Any]]:
    contents = [
        f"The gate number {number} is {('red', 'blue')[number % 2]}{' and it is' * (number % 5)}" for number in range(count)
    ]
    return [request_body(content) for content in contents]


def test_requests_share_passes_and_keep_every_bit() -> None:
    alone = ScoringService(toy_loaded())
    expected = [public_scores(alone.score(body).to_dict()) for body in bodies(40)]
    raw = [alone.score(body).results for body in bodies(40)]
    alone.close()
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    tickets = [service.submit(body) for body in bodies(40)]
    while service.statistics().waiting < 40 or sum(ticket.compiled for ticket in tickets) < 40:
        time.sleep(0.005)
    model.gate.set()
    responses = [ticket.future.result(30) for ticket in tickets]
    service.close()
    assert [public_scores(response.to_dict()) for response in responses] == expected
    assert [response.results for response in responses] == raw
    assert len(model.passes) < 15
    assert max(model.passes) > 400


def test_without_sharing_every_pass_is_one_request(service: ScoringService) -> None:
    model = GatedModel()
    lonely = ScoringService(toy_loaded(settings_with(engine__share_passes=False), model))
    model.gate.set()
    tickets = [lonely.submit(body) for body in bodies(6)]
    found = [ticket.future.result(30).results for ticket in tickets]
    lonely.close()
    assert found == [service.score(body).results for body in bodies(6)]
    assert len(model.passes) >= 6


def test_many_floors_are_looked_up_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them once, while others get the lock in between."""
    service = ScoringService(toy_loaded(model=ToyModel()))
    looked_up: list[list[FloorKey]] = []
    order = FloorDesk.order
    monkeypatch.setattr(service_module, "FLOORS_AT_ONCE", 3)
    monkeypatch.setattr(
        FloorDesk, "order", lambda desk, ticket, floors, keys: looked_up.append(keys) or order(desk, ticket, floors, keys)
    )
    query = {"id": "in", "template": "\nIs it in the {place}?\nAnswer:{?}", "options": [" yes", " no"]}
    query["combinations"] = [{"place": place} for place in ("north", "south", "east", "west", "hall", "yard", "wing")]
    response = service.score(request_body(scoring={"queries": [query]}))
    service.close()
    assert [len(keys) for keys in looked_up] == [3, 3, 1]
    assert len(set().union(*looked_up)) == 7
    (found,) = response.results[0].queries
    assert all(option.floor_p is not None for combination in found.combinations for option in combination.options)


def test_floors_are_read_once_for_all_that_wait() -> None:
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    tickets = [service.submit(request_body("The gate is red.")) for _ in range(8)]
    model.gate.set()
    results = [ticket.future.result(30) for ticket in tickets]
    cached = service.score(request_body("The gate is red."))
    service.close()
    assert all(response.results == cached.results for response in results)
    assert service.statistics().floors == 2
    counts = [response.usage.prompt_tokens_details.floor_tokens for response in (*results, cached)]
    assert len(set(counts)) == 1
    assert cached.usage.processed_tokens == min(response.usage.processed_tokens for response in results)
    assert max(response.usage.processed_tokens for response in results) > cached.usage.processed_tokens


def test_a_cancelled_request_frees_its_place_and_its_work() -> None:
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model), max_waiting=2)
    first = service.submit(request_body())
    large = request_body()
    messages = large.pop("messages")
    large["inputs"] = [{"messages": messages}] * 200
    second = service.submit(large)
    with pytest.raises(Rejected) as refused:
        service.submit(request_body())
    assert (refused.value.code, refused.value.status) == ("concurrency_limit", 429)
    assert isinstance(refused.value.retry_after, int)
    while not second.compiled:
        time.sleep(0.005)
    service.cancel(second)
    third = service.submit(request_body())
    model.gate.set()
    assert first.future.result(30).results == third.future.result(30).results
    with pytest.raises(CancelledError):
        second.future.result(1)
    service.close()
    assert sum(model.passes) < 1000


def test_a_small_request_behind_a_large_one_waits_at_most_three_passes() -> None:
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    large = request_body()
    large["inputs"] = [{"messages": [{"role": "user", "content": f"gate {number}"}]} for number in range(1500)]
    del large["messages"]
    first = service.submit(large)
    while not first.compiled:
        time.sleep(0.01)
    model.gate.set()
    while len(model.passes) < 3:
        time.sleep(0.001)
    small = service.submit(request_body("The small one."))
    while not small.compiled:
        time.sleep(0.0005)
    compiled_after = len(model.passes)
    small.future.result(30)
    assert len(model.passes) - compiled_after <= 3
    assert not first.future.done()
    first.future.result(60)
    assert len(model.passes) > 50
    service.close()


def test_out_of_memory_once_is_run_in_halves(service: ScoringService, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = service.score(request_body()).results
    forward, failures = ToyModel.forward, [1]

    def once(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("no memory left")
        return forward(self, pass_, past, keep)

    monkeypatch.setattr(ToyModel, "forward", once)
    assert service.score(request_body()).results == expected
    assert not failures


def test_out_of_memory_that_stays_is_413_for_that_request_alone(
    service: ScoringService, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ToyModel.forward

    def small_memory(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if (pass_.job >= 0).sum() > 150:
            raise torch.OutOfMemoryError("no memory left")
        return forward(self, pass_, past, keep)

    expected = service.score(request_body()).results
    monkeypatch.setattr(ToyModel, "forward", small_memory)
    with pytest.raises(Rejected) as refused:
        service.score(request_body("the red gate " * 100))
    assert (refused.value.code, refused.value.status) == ("request_too_large", 413)
    assert service.score(request_body()).results == expected


def test_a_fault_in_a_pass_is_laid_at_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing internal reaches the caller."""
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    forward = GatedModel.forward

    def broken(self: GatedModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if (pass_.ids == bad).any():
            raise ZeroDivisionError("secret detail")
        return forward(self, pass_, past, keep)

    (bad,) = model.tokenizer.encode("é")[:1]
    monkeypatch.setattr(GatedModel, "forward", broken)
    good = [service.submit(body) for body in bodies(3)]
    ill = service.submit(request_body("é" * 40))
    model.gate.set()
    with pytest.raises(Rejected) as refused:
        ill.future.result(30)
    assert (refused.value.code, refused.value.status) == ("engine_error", 500)
    assert "secret" not in refused.value.message
    assert [ticket.future.result(30).results for ticket in good] == [service.score(body).results for body in bodies(3)]
    service.close()


def test_a_dead_engine_thread_fails_what_waits_and_takes_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ScoringService(toy_loaded())

    def die(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(service._scorer, "launch", die)
    ticket = service.submit(request_body())
    with pytest.raises(Rejected) as lost:
        ticket.future.result(10)
    assert lost.value.code == "model_unavailable"
    assert service.degraded
    with pytest.raises(Rejected) as refused:
        service.submit(request_body())
    assert (refused.value.code, refused.value.status) == ("model_unavailable", 503)


def test_sixty_four_equal_requests_ten_times_over(service: ScoringService) -> None:
    expected = service.score(request_body()).results
    for _ in range(10):
        tickets = [service.submit(request_body()) for _ in range(64)]
        assert all(ticket.future.result(30).results == expected for ticket in tickets)


def work_of(*rows: int) -> Work:
    """Parts of jobs that take these numbers of rows."""
    return Work([next(split(Probe((), ((7,) * count,)).job(), count)) for count in rows])


def taken(scheduler: Scheduler) -> list[list[int]]:
    passes = []
    while chosen := scheduler.next_pass():
        passes.append([part.rows for _, part in chosen])
    return passes


def test_requests_take_turns_by_rows() -> None:
    scheduler = Scheduler(100)
    large, small = work_of(*[25] * 20), work_of(25, 25)
    scheduler.add(large)
    scheduler.add(small)
    first = scheduler.next_pass()
    assert sum(work is small for work, _ in first) == 2
    assert sum(part.rows for _, part in first) == 100


def test_room_that_nobody_has_a_share_of_is_used() -> None:
    scheduler = Scheduler(100)
    for rows in (60, 30, 90):
        scheduler.add(work_of(rows))
    assert [sorted(rows) for rows in taken(scheduler)] == [[30, 60], [90]]


def test_a_part_over_the_budget_runs_alone_and_starves_nobody() -> None:
    scheduler = Scheduler(100)
    scheduler.add(work_of(500, 500, 500))
    scheduler.add(work_of(10))
    assert taken(scheduler) == [[500], [10], [500], [500]]


@pytest.mark.parametrize("failing", [{1, 2}, {2, 3}, {3, 4}])
def test_a_floor_that_fails_in_one_of_its_passes_fails_its_request_alone(
    failing: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor takes several passes; one of them, and then half of it, runs out of memory."""
    loaded = toy_loaded(settings_with(limits__max_option_tokens=10), budget=48)
    service = ScoringService(attrs.evolve(loaded, max_rows=64, sizes=Sizes.up_to(48, 64)))
    options = [f" {first}x{second}q{first}" for first in "abcdefgh" for second in "ijklmnop"]
    body = request_body()
    body["scoring"]["queries"] = [{"id": "long", "template": "\nIt is in the{?}", "options": options}]
    forward, runs = ToyModel.forward, []

    def fails(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        runs.append(len(pass_.ids))
        if len(runs) in failing:
            raise torch.OutOfMemoryError("no memory left")
        return forward(self, pass_, past, keep)

    monkeypatch.setattr(ToyModel, "forward", fails)
    with pytest.raises(Rejected) as refused:
        service.score(body)
    assert refused.value.code == "request_too_large"
    runs[:] = [0] * 10
    assert service.score(body).results == service.score(body).results
    assert service.degraded is None
    assert len(runs) > 14
    service.close()


def test_a_response_that_is_due_does_not_queue_behind_requests_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    model, compiling = GatedModel(), threading.Event()
    service = ScoringService(toy_loaded(model=model))
    first = service.submit(request_body())
    assert model.entered.wait(20)
    begin = Compiler.begin

    def slowly(self: Compiler, request: Any) -> Any:
        assert compiling.wait(20)
        return begin(self, request)

    monkeypatch.setattr(Compiler, "begin", slowly)
    others = [service.submit(request_body()) for _ in range(10)]
    model.gate.set()
    expected = first.future.result(10).results
    compiling.set()
    assert all(other.future.result(30).results == expected for other in others)
    service.close()
