"""Faults in the middle of passes: who is told, and that nothing hangs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from spinf_core.compiler.compile import Compiler
from spinf_core.engine.memory import DeviceMemory
from spinf_core.engine.reading import Reading
from spinf_core.engine.request import Ticket, Write
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected
from spinf_core.testing.toy import ToyModel

from .conftest import request_body, toy_loaded
from .test_service import GatedModel, bodies

Forward = Callable[..., Any]


@pytest.fixture
def service() -> Iterator[ScoringService]:
    service = ScoringService(toy_loaded())
    yield service
    within(service.close)


def within(call: Callable[[], Any], seconds: float = 20) -> None:
    """Call something that must not hang."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()


def refusal(ticket: Ticket) -> str:
    with pytest.raises(Rejected) as caught:
        ticket.future.result(20)
    return caught.value.code


def with_token(model: ToyModel, text: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passes fail that hold a token of a text."""
    (bad,) = model.tokenizer.encode(text)[:1]
    forward = type(model).forward

    def failing(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if (pass_.ids == bad).any():
            raise error
        return forward(self, pass_, past, keep)

    monkeypatch.setattr(type(model), "forward", failing)


class PanicError(BaseException):
    """As the Python exception of a panic in Rust, which is no `Exception`."""


def test_a_panic_while_a_request_is_compiled_is_answered(service: ScoringService, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object) -> None:
        raise PanicError("index out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "begin", panic)
        assert refusal(service.submit(request_body())) == "engine_error"
    assert service.score(request_body()).results


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_memory_of_a_pass_that_failed_is_free_when_it_is_tried_again(
    service: ScoringService, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    forward, held = ToyModel.forward, []
    alive: list[bool] = []

    def allocate() -> None:
        activations = torch.empty(10)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("no memory left")

    def hungry(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if not held and wrapped:
            try:
                allocate()
            except torch.OutOfMemoryError as error:
                raise RuntimeError("out of memory in layer 3") from error
        if not held:
            allocate()
        alive.append(held[0]() is not None)
        return forward(self, pass_, past, keep)

    monkeypatch.setattr(ToyModel, "forward", hungry)
    assert service.score(request_body()).results
    assert alive
    assert not any(alive)


def test_a_fault_in_a_half_after_an_out_of_memory_is_its_request_s_alone(
    service: ScoringService, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, failures = ToyModel.forward, [torch.OutOfMemoryError("no memory left"), ZeroDivisionError()]

    def failing(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        if failures:
            raise failures.pop(0)
        return forward(self, pass_, past, keep)

    expected = service.score(request_body()).results
    monkeypatch.setattr(ToyModel, "forward", failing)
    assert refusal(service.submit(request_body())) == "engine_error"
    assert service.degraded is None
    assert service.score(request_body()).results == expected


@pytest.mark.parametrize("message", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"])
def test_out_of_memory_is_told_by_what_libraries_say_of_it(
    service: ScoringService, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(ToyModel, "forward", full)
    assert refusal(service.submit(request_body())) == "request_too_large"


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), torch.OutOfMemoryError("full")])
def test_a_floor_that_fails_is_laid_at_its_request_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though floors of many requests are read in one job."""
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    with_token(model, "é", error, monkeypatch)
    first = service.submit(request_body("The first goes by itself."))
    assert model.entered.wait(20)
    others = [service.submit(body) for body in bodies(5)]
    for number, body in enumerate(bodies(3)):
        body["scoring"]["queries"][0]["template"] = f"\nIs gate {number} red?{{?}}"
        others.append(service.submit(body))
    ill = request_body()
    ill["scoring"]["queries"] = [{"id": "ill", "template": "\né{?}", "options": [" yes", " no"]}]
    failed = service.submit(ill)
    while not failed.compiled or any(not each.compiled for each in others):
        time.sleep(0.002)
    model.gate.set()
    assert refusal(failed) in ("engine_error", "request_too_large")
    assert all(each.future.result(20).results for each in (first, *others))
    assert service.degraded is None
    within(service.close)


def test_values_that_cannot_be_read_fail_their_pass_alone(service: ScoringService, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Reading) -> None:
        raise ValueError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(Reading, "values", broken)
        assert refusal(service.submit(request_body())) == "engine_error"
    assert service.degraded is None
    assert service.score(request_body()).results


class LostDevice:
    """A device whose driver answers with an error from some time on, as CUDA does after a fault in a kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = False
        monkeypatch.setattr(DeviceMemory, "check_device", lambda memory: self._check())

    def _check(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("where", ["launch", "values"])
def test_a_device_that_does_not_work_any_more_degrades_the_service(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later pass would fail too, and a server that stays ready would go on getting requests."""
    service, device = ScoringService(toy_loaded()), LostDevice(monkeypatch)

    def faulty(*_: object, **__: object) -> None:
        device.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(*((ToyModel, "forward") if where == "launch" else (Reading, "values")), faulty)
    tickets = [service.submit(body) for body in bodies(5)]
    assert {refusal(ticket) for ticket in tickets} == {"model_unavailable"}
    assert service.degraded
    assert not service.exhausted
    within(service.close)


@pytest.mark.parametrize("thread", ["launch", "values", "finished"])
def test_whichever_thread_dies_all_that_waits_is_answered_and_close_returns(
    thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    first = service.submit(request_body())
    assert model.entered.wait(20)
    tickets = [first, *(service.submit(body) for body in bodies(10))]
    owner, name = {
        "launch": (service._scorer, "launch"),
        "values": (Reading, "values"),
        "finished": (service._device, "_finished"),
    }[thread]
    monkeypatch.setattr(owner, name, die)
    model.gate.set()
    codes = {refusal(ticket) for ticket in tickets if ticket is not first or thread != "launch"}
    assert codes == {"model_unavailable"}
    within(service.close)


def test_requests_cancelled_while_their_pass_runs_leave_nothing_behind() -> None:
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    tickets = [service.submit(body) for body in bodies(20)]
    assert model.entered.wait(20)
    for ticket in tickets:
        service.cancel(ticket)
    assert service.waiting == 0
    closing = threading.Thread(target=service.close, daemon=True)
    closing.start()
    model.gate.set()
    closing.join(20)
    assert not closing.is_alive()
    assert service.statistics().requests == {"cancelled": 20}


def test_closing_while_passes_run_answers_what_was_accepted(service: ScoringService) -> None:
    tickets = [service.submit(body) for body in bodies(40)]
    service.close()
    assert all(ticket.future.result(0).results for ticket in tickets)


class LeakyMemory(DeviceMemory):
    """A device that keeps some bytes of every pass that failed."""

    def held(self) -> int:
        return 3_000_000_000


def test_memory_that_stays_taken_turns_the_service_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that did not fit is told so; the others may be sent to another server."""
    monkeypatch.setattr("spinf_core.engine.service.DeviceMemory", LeakyMemory)
    model = GatedModel()
    service = ScoringService(toy_loaded(model=model))
    with_token(model, "é", torch.OutOfMemoryError("full"), monkeypatch)
    ill = service.submit(request_body("é" * 40))
    assert not service.exhausted
    model.gate.set()
    assert refusal(ill) == "request_too_large"
    while service.degraded is None:
        time.sleep(0.002)
    assert service.exhausted
    assert "3.0 GB" in service.degraded
    with pytest.raises(Rejected) as refused:
        service.submit(request_body())
    assert refused.value.code == "model_unavailable"
    within(service.close)


def test_memory_is_compared_with_what_was_held_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = [5 << 30]
    properties = type("Properties", (), {"total_memory": 32 << 30})
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    memory = DeviceMemory(torch.device("cuda"))
    allocated[0] += 2 << 30
    assert memory.held() == 0
    allocated[0] += 1
    assert memory.held() == (2 << 30) + 1


def test_the_results_of_an_input_are_made_once(service: ScoringService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass looks at the inputs that are new, or a request of many inputs would take time by their square."""
    body = request_body()
    messages = body.pop("messages")
    body["inputs"] = [{"messages": messages}] * 60
    asked: list[int] = []
    found = Ticket.inputs_to_answer

    def counted(self: Ticket) -> list[int]:
        numbers = found(self)
        asked.extend(numbers)
        return numbers

    monkeypatch.setattr(Ticket, "inputs_to_answer", counted)
    assert len(service.score(body).results) == 60
    assert len(asked) < 120


@pytest.mark.parametrize("write", [None, lambda ticket, response: response.to_json({})])
def test_a_floor_that_is_not_a_number_is_told_as_such(
    service: ScoringService, monkeypatch: pytest.MonkeyPatch, write: Write | None
) -> None:
    """Also where the results of the first inputs could be written before the last one is read."""
    forward = ToyModel.forward

    def poisoned(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        hidden, state = forward(self, pass_, past, keep)
        without_content = pass_.cut[pass_.job[pass_.reads]] == 0
        return hidden.masked_fill(torch.from_numpy(without_content)[:, None], torch.nan), state

    monkeypatch.setattr(ToyModel, "forward", poisoned)
    body = request_body()
    del body["messages"]
    body["inputs"] = [{"messages": [{"role": "user", "content": "The gate in the north wing is red. " * 2}]}] * 60
    with pytest.raises(Rejected, match="a score that is not a number"):
        service.submit(body, write=write).future.result(20)
