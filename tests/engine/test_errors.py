"""What the compiler and the engine refuse, each with its code and field, and that the next request works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spinf_core.engine.engine import Engine
from spinf_core.errors import Rejected, SetupError
from spinf_core.stack import Pass, State
from spinf_core.testing.requests import numbers, query, request
from spinf_core.testing.toy import ToyModel
from spinf_core.testing.toy_plugin import toy_engine

Q = "scoring.queries.0"
ORDINARY = request("the gate is red", query("\nIs it red?"))


def two_inputs(first: str, second: str, **limits: int) -> dict[str, Any]:
    body = ORDINARY | {"inputs": [{"messages": [{"content": text}]} for text in (first, second)], "limits": limits}
    del body["messages"]
    return body


def limited(body: dict[str, Any], **limits: int) -> dict[str, Any]:
    return body | {"limits": limits}


REFUSED = {
    "an option that merges with the template": (
        request("", query("The Sta", [" yes", "tus"])),
        "option_boundary",
        f"{Q}.options.1",
    ),
    "an option that merges with the content": (
        request("The Sta", {**query("", ["tus"]), "empty_floor": False}),
        "option_boundary",
        f"{Q}.options.0",
    ),
    "an option of six tokens": (request("", query("Is it?", [" yes", "zzzzzz"])), "option_too_long", f"{Q}.options.1"),
    "a lowered limit of an option's tokens": (
        limited(request("", query("Is it?", [" north wing"])), max_option_tokens=1),
        "option_too_long",
        f"{Q}.options.0",
    ),
    "a template of 257 tokens": (request("", query("z" * 257)), "template_too_long", f"{Q}.template"),
    "a second query's template": (
        request("", query("Is it?"), query("z" * 257)),
        "template_too_long",
        "scoring.queries.1.template",
    ),
    "values that fill a template up": (
        request("", query("{a}{b}{?}", combinations=[{"a": "z" * 200, "b": "z" * 57}])),
        "template_too_long",
        f"{Q}.template",
    ),
    "a content beyond the limit": (
        limited(request("the gate is", query("?")), max_content_tokens=2),
        "content_too_long",
        "messages",
    ),
    "one input's content": (two_inputs("the", "the gate is", max_content_tokens=2), "content_too_long", "inputs.1.messages"),
    "a content beyond what the engine runs": (request(" gate" * 511, query("?!")), "content_too_long", "messages"),
    "a request beyond the limit": (limited(ORDINARY, max_processed_tokens=5), "request_too_large", "scoring.queries"),
    "inputs beyond the limit": (two_inputs("the", "the gate", max_processed_tokens=12), "request_too_large", "inputs"),
    "the slot alone, floors on": (request("the gate", query("")), "invalid_field", f"{Q}.template"),
    "the slot alone on nothing": (request("", query(""), empty_floor=False), "invalid_field", f"{Q}.template"),
    "a value that leaves nothing before the slot": (
        request("the gate", query("{a}{?}", combinations=[{"a": "it"}, {"a": ""}])),
        "invalid_field",
        f"{Q}.template",
    ),
    "another model": (ORDINARY | {"model": "gpt-4"}, "model_not_served", "model"),
}


@pytest.mark.parametrize(("body", "code", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_scored_is_refused_by_name(toy: Engine, body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(Rejected) as caught:
        toy.score(body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert toy.score(ORDINARY).results


ALLOWED = {
    "a template of 256 tokens": request("", query("z" * 256)),
    "an option of five tokens": request("", query("Is it?", ["zzzzz"])),
    "a content of as many tokens as the limit": limited(request("the gate is", query("?")), max_content_tokens=3),
    "a path of as many rows as the engine runs": request(" gate" * 511, query("?")),
    "the slot alone behind a content, floors off": request("the gate", query(""), empty_floor=False),
    "a query's own floor off": request("the gate", query("", empty_floor=False)),
    "as many tokens as the limit": limited(ORDINARY, max_processed_tokens=16),
    "the model by its name in any case": ORDINARY,
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_just_fits_is_scored(toy: Engine, body: dict[str, Any]) -> None:
    assert toy.score(body).results


def test_the_model_s_name_is_matched_in_any_case(toy: Engine) -> None:
    assert toy.score(ORDINARY | {"model": toy.model_id.upper()}).model == toy.model_id.upper()


def test_with_bos_the_slot_alone_has_something_to_read(engines: Callable[..., Engine]) -> None:
    response = engines(bos=True).score(request("", query("")))
    assert response.usage.content.tokens == 0
    assert response.usage.scoring.query_tokens == 0


def test_a_floor_that_takes_more_rows_than_the_engine_runs_is_refused(engines: Callable[..., Engine]) -> None:
    """Merged with the content's end the template takes fewer rows than on its own."""
    small = engines(settings={"engine.token_budget": 64, "engine.max_tokens": 64})
    body = request("Sta", query("tus" + "z" * 64), empty_floor=True)
    with pytest.raises(Rejected) as caught:
        small.score(body)
    assert (caught.value.code, caught.value.param) == ("template_too_long", f"{Q}.template")
    assert small.score(request("", query("z" * 64))).results


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_fails_its_request_alone(
    toy: Engine, monkeypatch: pytest.MonkeyPatch, poison: float
) -> None:
    """Case G2 (sglang #5984)."""
    expected = numbers(toy.score(ORDINARY))
    forward = ToyModel.forward

    def poisoned(self: ToyModel, pass_: Pass, past: State | None = None, keep: Any = None) -> tuple[Tensor, State | None]:
        hidden, state = forward(self, pass_, past, keep)
        return torch.where(torch.arange(len(hidden))[:, None] == 0, poison, hidden), state

    with monkeypatch.context() as patch:
        patch.setattr(ToyModel, "forward", poisoned)
        with pytest.raises(Rejected) as caught:
            toy.score(request("the wing", query("\nIs it blue, of all?")))
    assert (caught.value.code, caught.value.status, caught.value.param) == ("engine_error", 500, None)
    assert "nan" not in caught.value.message.lower()
    assert numbers(toy.score(ORDINARY)) == expected
    assert toy.score(request("the wing", query("\nIs it blue, of all?"))).results  # no poisoned floor was kept


def test_a_closed_engine_says_so(tmp_path: Path, own_cache: Path, untested: None) -> None:
    engine = toy_engine(tmp_path / "toy")
    engine.close()
    with pytest.raises(SetupError, match="closed"):
        engine.score(ORDINARY)
