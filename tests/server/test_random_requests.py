"""Many random requests at once, some of them refused or cancelled, against the same ones one after another."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import pytest

from spinf_core.engine import service as service_module
from spinf_core.engine.device import DeviceLoop
from spinf_core.engine.reading import Reading
from spinf_core.engine.service import ScoringService
from spinf_core.errors import Rejected

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


def test_two_hundred_at_once_equal_themselves_alone_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    bodies = [body(draw) for _ in range(200)]
    loaded = partial(toy_loaded, settings_with(limits__max_content_tokens=250), budget=256)
    alone = ScoringService(loaded())
    expected = [alone.score(each, trusted=False).results for each in bodies]
    alone.close()

    def with_passes_ahead(*arguments: Any, **options: Any) -> DeviceLoop:
        return DeviceLoop(*arguments, **(options | {"ahead": 2}))

    values = Reading.values

    def late(self: Reading) -> Any:
        """As from a device that works while the next pass is launched."""
        time.sleep(0.002)
        return values(self)

    monkeypatch.setattr(service_module, "DeviceLoop", with_passes_ahead)
    monkeypatch.setattr(Reading, "values", late)
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
