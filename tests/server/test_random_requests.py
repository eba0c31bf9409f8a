"""Many random requests at once, some of them refused, cancelled or met by faults, against the same ones one after another."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import pytest
import torch

from spinf_core.engine import service as service_module
from spinf_core.engine.device import DeviceLoop
from spinf_core.engine.reading import Reading
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected
from spinf_core.testing.toy import ToyModel

from .conftest import settings_with, toy_loaded

WORDS = (
    "the",
    "a",
    "of",
    "and",
    "yes",
    "no",
    "Yes",
    "No",
    "Sta",
    "status",
    "in",
    "out",
    "part",
    "north",
    "wing",
    "gate",
    "red",
    "zebra",
)
OPTIONS = (" yes", " no", " north", " north wing", " wing", " red", " blue", "in", " in part", " status", "Q")


def text(random: random.Random, most: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(random.randint(0, most)))


def query(random: random.Random, id_: str) -> dict[str, Any]:
    options = random.sample(OPTIONS, random.randint(1, 5))
    made: dict[str, Any] = {"id": id_, "template": f"\n{text(random, 12)}:{{?}}", "options": options}
    if random.random() < 0.3:
        values = random.sample(WORDS, random.randint(1, 6))
        made |= {"template": f"\nIs it {{what}}, {text(random, 4)}?{{?}}", "combinations": [{"what": each} for each in values]}
    if random.random() < 0.3:
        made["empty_floor"] = False
    return made


def body(random: random.Random) -> dict[str, Any]:
    queries = [query(random, str(number)) for number in range(random.randint(1, 4))]
    inputs = []
    for _ in range(random.choice((1, 1, 2, 5))):
        content = text(random, random.choice((3, 40, 90)))
        chosen = random.sample([each["id"] for each in queries], random.randint(1, len(queries)))
        inputs.append({"messages": [{"role": "user", "content": content}], "query_ids": chosen})
    return {"inputs": inputs, "scoring": {"queries": queries}}


def too_long(good: dict[str, Any], number: int) -> dict[str, Any]:
    """The same with one content too many."""
    inputs = [*good["inputs"]]
    inputs.insert(number, {"messages": [{"role": "user", "content": "gate " * 300}]})
    return good | {"inputs": inputs}


@pytest.fixture
def two_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services launch a pass while another one runs, on a device that takes its time."""
    values = Reading.values

    def late(self: Reading) -> Any:
        time.sleep(0.002)
        return values(self)

    monkeypatch.setattr(Reading, "values", late)
    monkeypatch.setattr(service_module, "DeviceLoop", lambda *given, **named: DeviceLoop(*given, **(named | {"ahead": 2})))


@pytest.mark.usefixtures("two_ahead")
def test_two_hundred_at_once_equal_themselves_alone_to_the_bit() -> None:
    draw = random.Random(0)
    bodies = [body(draw) for _ in range(200)]
    loaded = partial(toy_loaded, settings_with(limits__max_content_tokens=250), budget=256)
    alone = ScoringService(loaded())
    expected = [alone.score(each, trusted=False).results for each in bodies]
    alone.close()
    service = ScoringService(loaded())
    tickets, refused = [], []
    for number, each in enumerate(bodies):
        tickets.append(service.submit(each))
        if number % 7 == 0:
            place = draw.randint(0, len(each["inputs"]))
            refused.append((place, service.submit(too_long(each, place))))
        if number % 5 == 0:
            service.cancel(service.submit(body(draw)))
    found = [ticket.future.result(60).results for ticket in tickets]
    for place, ticket in refused:
        with pytest.raises(Rejected) as caught:
            ticket.future.result(60)
        assert (caught.value.code, caught.value.param) == ("content_too_long", f"inputs.{place}.messages")
    service.close()
    assert found == expected
    outcomes = service.statistics().requests
    assert outcomes["content_too_long"] == len(refused)
    assert outcomes["ok"] + outcomes["cancelled"] == 240


@pytest.mark.usefixtures("two_ahead")
def test_whatever_fails_every_request_is_answered_and_no_answer_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    bodies = [body(draw) for _ in range(60)]
    alone = ScoringService(toy_loaded(budget=256))
    expected = [alone.score(each).results for each in bodies]
    alone.close()
    forward = ToyModel.forward

    def failing(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        fate = draw.random()
        if fate < 0.2:
            raise torch.OutOfMemoryError("no memory left")
        if fate < 0.3:
            raise ValueError("secret")
        return forward(self, pass_, past, keep)

    monkeypatch.setattr(ToyModel, "forward", failing)
    service = ScoringService(toy_loaded(budget=256))
    tickets = [service.submit(each) for each in bodies]
    service.close()
    refusals = [ticket.future.exception(0) for ticket in tickets]
    assert {error.code for error in refusals if isinstance(error, Rejected)} == {"request_too_large", "engine_error"}
    answered = [number for number, error in enumerate(refusals) if error is None]
    assert answered
    assert [tickets[number].future.result(0).results for number in answered] == [expected[number] for number in answered]
    assert service.degraded is None
