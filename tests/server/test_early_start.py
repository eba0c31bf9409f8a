"""A large request runs while its later inputs are compiled; a small one waits until it is whole; what is refused never runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import attrs
import numpy as np
import pytest

from spinf_core.compiler.compile import Compilation, Compiler
from spinf_core.compiler.jobs import Part
from spinf_core.engine import service as service_module
from spinf_core.engine.request import Ticket
from spinf_core.engine.scheduler import Scheduler
from spinf_core.engine.selftest import SelfTest
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected
from spinf_core.protocol import ScoreResponse, parse_request
from spinf_core.testing.toy import ToyModel, toy_tokenizer

from .conftest import request_body, settings_with, toy_loaded

INPUTS = 24  # of 33 rows each, in passes of up to 512


class CountingModel(ToyModel):
    """A toy that says when its first pass begins, and counts the rows of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.passes: list[int] = []

    def forward(self, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        self.passes.append(int((pass_.job >= 0).sum()))
        self.entered.set()
        return super().forward(pass_, past, keep)


def large_body(inputs: int = INPUTS, **scoring: Any) -> dict[str, Any]:
    body = request_body()
    del body["messages"]
    contents = [f"Gate {number:02} in the north wing is {('red', 'blue')[number % 2]}." for number in range(inputs)]
    body["inputs"] = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    body["scoring"] |= scoring
    return body


def with_a_question_of_the_last_input() -> dict[str, Any]:
    """Its floor is wanted by nothing that is compiled before."""
    body = large_body()
    names = [query["id"] for query in body["scoring"]["queries"]]
    own = [{"id": "own", "template": "\nIs the gate blue?\nAnswer:{?}", "options": [" yes", " no"]}]
    body["inputs"][-1] |= {"query_ids": names, "queries": own}
    return body


class Pause:
    """Holds back the compiler before one of the inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: int, then: Exception | None = None) -> None:
        self.reached, self.over = threading.Event(), threading.Event()
        self.compiled = 0
        inputs = Compilation.inputs

        def paused(compilation: Compilation) -> Iterator[Any]:
            for number, entry in enumerate(inputs(compilation)):
                if number == before:
                    self.reached.set()
                    assert self.over.wait(20)
                    if then is not None:
                        raise then
                self.compiled += 1
                yield entry

        monkeypatch.setattr(Compilation, "inputs", paused)


Start = Callable[..., tuple[ScoringService, CountingModel]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services of a toy that counts."""
    services: list[ScoringService] = []

    def started(*, invariant: bool = True, **flags: Any) -> tuple[ScoringService, CountingModel]:
        model = CountingModel()
        loaded = toy_loaded(settings_with(**flags), model)
        if not invariant:
            loaded = attrs.evolve(loaded, self_test=SelfTest(("rows differ",), "0", 0.0))
        services.append(ScoringService(loaded))
        return services[-1], model

    yield started
    for service in services:
        service.close()


def results_of(start: Start, body: dict[str, Any]) -> ScoreResponse:
    """Of a service that is asked nothing else, and compiles without a pause."""
    service, _ = start()
    return service.score(body)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("body", [large_body(), large_body(empty_floor=False), with_a_question_of_the_last_input()])
def test_a_pass_runs_before_the_last_input_is_compiled_and_no_bit_changes(
    body: dict[str, Any], share: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = results_of(start, body)
    pause = Pause(monkeypatch, before=INPUTS - 1)
    service, model = start(engine__share_passes=share)
    ticket = service.submit(body)
    assert pause.reached.wait(20)
    assert model.entered.wait(20)
    pause.over.set()
    response = ticket.future.result(20)
    assert response.results == expected.results
    assert response.usage.prompt_tokens == expected.usage.prompt_tokens


def test_scores_that_depend_on_the_packing_do_not_depend_on_how_long_compiling_takes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is not invariant is given the same passes for the same request."""
    service, model = start(invariant=False)
    service.score(large_body())
    expected = [*model.passes]
    model.passes.clear()
    model.entered.clear()
    pause = Pause(monkeypatch, before=INPUTS - 1)
    ticket = service.submit(large_body())
    assert pause.reached.wait(20)
    assert not model.entered.wait(0.1)
    pause.over.set()
    ticket.future.result(20)
    assert model.passes == expected


def test_a_request_of_one_pass_waits_until_it_is_whole(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, model = start()
    service.score(large_body(1))  # its floors are cached from now on
    model.entered.clear()
    model.passes.clear()
    pause = Pause(monkeypatch, before=4)
    ticket = service.submit(large_body(5))
    assert pause.reached.wait(20)
    assert not model.entered.wait(0.1)
    pause.over.set()
    ticket.future.result(20)
    assert len(model.passes) == 1


def drained(scheduler: Scheduler) -> Iterator[list[Part]]:
    while chosen := scheduler.next_pass():
        yield [part for _, part in chosen]


@pytest.mark.parametrize("inputs", [1, 5, 6, 7, 12, 13, 17, 24, 40])
def test_beginning_early_makes_no_pass_more(inputs: int) -> None:
    compiled = Compiler(toy_tokenizer(), 2048).compile(parse_request(large_body(inputs, empty_floor=False)))
    rows = {entry.job.rows for entry in compiled.inputs}
    assert len(rows) == 1
    budget = 6 * rows.pop() + 5
    ticket, scheduler, passes = Ticket("t"), Scheduler(budget), []
    ticket.begin(compiled.floors, [], inputs, budget, 2048)
    for entry in compiled.inputs:
        if ticket.add(entry):
            scheduler.add(ticket)
            if not ticket.begun:
                passes.append([part for _, part in scheduler.next_pass()])
                ticket.begin_pass(0.0)
    passes += drained(scheduler)
    assert len(passes) == -(-inputs // 6)
    assert sum(map(len, passes)) == inputs


class HeldLaunch:
    """Holds back the launch of every pass; whoever waits for one would wait very long."""

    def __init__(self, model: CountingModel, monkeypatch: pytest.MonkeyPatch, *, begin_first: float) -> None:
        self.over = threading.Event()
        forward = model.forward

        def held(*arguments: Any) -> Any:
            found = forward(*arguments)
            assert self.over.wait(20)
            return found

        monkeypatch.setattr(model, "forward", held)
        monkeypatch.setattr(service_module, "BEGIN_FIRST", begin_first)
        monkeypatch.setattr(service_module, "LAUNCH_FIRST", 20.0)


def test_other_inputs_are_compiled_once_the_first_pass_is_launched(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, model = start()
    launch = HeldLaunch(model, monkeypatch, begin_first=20.0)
    ticket = service.submit(large_body())
    assert model.entered.wait(20)
    time.sleep(0.1)  # all inputs take a few milliseconds
    compiled = len(ticket.inputs)
    launch.over.set()
    assert len(ticket.future.result(15).results) == INPUTS
    assert 0 < compiled < INPUTS


def test_behind_others_passes_a_request_is_compiled_without_waiting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, model = start()
    launch = HeldLaunch(model, monkeypatch, begin_first=0.001)
    small = service.submit(request_body())
    assert model.entered.wait(20)
    large = service.submit(large_body())
    until = time.monotonic() + 10
    while not large.compiled and time.monotonic() < until:
        time.sleep(0.001)
    compiled, begun = large.compiled, large.begun
    launch.over.set()
    for ticket in (small, large):
        ticket.future.result(20)
    assert (compiled, begun) == (True, False)


def test_a_request_cancelled_while_it_waits_for_its_launch_frees_its_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    prepare = ScoringService._prepare

    def noted(service: ScoringService, *arguments: Any) -> None:
        prepare(service, *arguments)
        free.set()

    monkeypatch.setattr(ScoringService, "_prepare", noted)
    service, model = start()
    launch = HeldLaunch(model, monkeypatch, begin_first=20.0)
    ticket = service.submit(large_body())
    assert model.entered.wait(20)
    service.cancel(ticket)
    freed = free.wait(10)
    launch.over.set()
    assert freed


def test_a_fault_in_compiling_a_late_input_costs_the_whole_request_and_nothing_else(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Rejected("content_too_long", "too long", "inputs.20.messages")
    service, model = start()
    expected = service.score(request_body()).results
    model.entered.clear()
    with monkeypatch.context() as patch:
        pause = Pause(patch, before=20, then=fault)
        ticket = service.submit(large_body())
        assert pause.reached.wait(20)
        assert model.entered.wait(20)
        pause.over.set()
        with pytest.raises(Rejected) as refused:
            ticket.future.result(20)
    assert (refused.value.code, refused.value.param) == ("content_too_long", "inputs.20.messages")
    assert service.waiting == 0
    assert service.score(request_body()).results == expected
    assert service.statistics().requests == {"ok": 2, "content_too_long": 1}


def test_a_request_cancelled_between_its_inputs_is_compiled_no_further(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, model = start()
    with monkeypatch.context() as patch:
        pause = Pause(patch, before=12)
        ticket = service.submit(large_body())
        assert pause.reached.wait(20)
        assert model.entered.wait(20)
        service.cancel(ticket)
        assert service.waiting == 0
        pause.over.set()
        with pytest.raises(CancelledError):
            ticket.future.result(20)
        service.close()
    assert pause.compiled <= 13
    assert len(ticket.inputs) == 12


def test_what_fails_in_its_first_pass_is_compiled_no_further(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, model = start()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    pause = Pause(monkeypatch, before=12)
    monkeypatch.setattr(model, "forward", broken)
    ticket = service.submit(large_body())
    with pytest.raises(Rejected) as failed:
        ticket.future.result(20)
    pause.over.set()
    service.close()
    assert failed.value.code == "engine_error"
    assert len(ticket.inputs) <= 12


def test_a_service_that_is_closed_finishes_what_is_half_compiled(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results_of(start, large_body()).results
    pause = Pause(monkeypatch, before=12)
    service, model = start()
    ticket = service.submit(large_body())
    assert pause.reached.wait(20)
    assert model.entered.wait(20)
    closing = threading.Thread(target=service.close)
    closing.start()
    time.sleep(0.02)
    assert closing.is_alive()
    pause.over.set()
    assert ticket.future.result(20).results == expected
    closing.join(20)
    assert not closing.is_alive()


def test_times_of_a_request_that_began_early_add_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled while the device runs is part of the time in which it scores."""
    pause = Pause(monkeypatch, before=INPUTS - 1)
    service, model = start()
    ticket = service.submit(large_body())
    assert model.entered.wait(20)
    time.sleep(0.05)
    pause.over.set()
    timing = ticket.future.result(20).timing
    assert min(timing.compile_ms, timing.queue_ms, timing.gpu_busy_ms) >= 0
    assert timing.score_ms > 50
    assert timing.compile_ms + timing.queue_ms + timing.score_ms == pytest.approx(timing.wall_ms)


LONG = "the red gate " * 700


@pytest.mark.parametrize(
    ("last", "scoring", "limits", "code", "param"),
    [
        (LONG, {}, {"max_content_tokens": 1000}, "content_too_long", "inputs.23.messages"),
        (LONG, {}, {}, "content_too_long", "inputs.23.messages"),
        ("", {"queries": [{"id": "bare", "template": "{?}", "options": [" yes"]}]}, {}, "invalid_field", "scoring.queries.0"),
        ("Sta", {"queries": [{"id": "m", "template": "{?}", "options": ["tus"]}]}, {}, "option_boundary", "scoring.queries.0"),
        ("short", {}, {"max_processed_tokens": 500}, "request_too_large", "inputs"),
    ],
)
def test_a_request_that_its_last_input_spoils_is_refused_before_any_model_work(
    last: str, scoring: dict[str, Any], limits: dict[str, int], code: str, param: str, start: Start
) -> None:
    body = large_body(empty_floor=False, **scoring) | {"limits": limits}
    body["inputs"][-1]["messages"][0]["content"] = last
    service, model = start()
    with pytest.raises(Rejected) as refused:
        service.score(body)
    assert refused.value.code == code
    assert (refused.value.param or "").startswith(param)
    service.close()
    assert model.passes == []


@pytest.mark.parametrize("short_by", [0, 1])
def test_rows_are_counted_exactly_where_the_limit_is_near(short_by: int) -> None:
    """Though branches that share tokens are laid out only once the request is accepted."""
    compiler = Compiler(toy_tokenizer(), 2048)
    whole = compiler.compile(parse_request(large_body()))
    rows = sum(entry.job.rows for entry in whole.inputs) + whole.floors.tokens
    body = large_body() | {"limits": {"max_processed_tokens": rows - short_by}}
    request = parse_request(body, trusted=True)
    if short_by:
        with pytest.raises(Rejected) as refused:
            compiler.begin(request)
        assert f"about {rows} tokens" in refused.value.message
    else:
        again = compiler.compile(request)
        assert all(
            np.array_equal(one.job.token, other.job.token) for one, other in zip(whole.inputs, again.inputs, strict=True)
        )
