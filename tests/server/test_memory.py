"""Many questions on a long content where memory is short (sglang #2607, vllm #5907)."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import torch

from spinf_core.testing.toy import ToyModel

from .conftest import LiveServer, Serve, public_scores, request_body, toy_loaded

QUESTIONS = 400


class SmallMemory(ToyModel):
    """A toy whose passes hold at most `cap` rows of hidden states; the first pass fails whatever it holds."""

    def __init__(self, cap: int) -> None:
        super().__init__()
        self.cap = cap
        self.passes = 0
        self.failures = 0
        self.hidden: list[tuple[int, int]] = []

    def forward(self, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        self.passes += 1
        if self.passes == 1 or (pass_.job >= 0).sum() > self.cap:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        hidden, state = super().forward(pass_, past, keep)
        self.hidden.append((len(pass_.reads), len(hidden)))
        assert state is None
        return hidden, state


def many_questions(content: str) -> dict[str, Any]:
    body = request_body(content)
    query = body["scoring"]["queries"][0]
    names = [f"q{number}" for number in range(QUESTIONS)]
    body["scoring"]["queries"] = [query | {"id": name, "template": f"\nIs {name} red?\nAnswer:{{?}}"} for name in names]
    return body


def scores_of(server: LiveServer, body: dict[str, Any]) -> tuple[int, Any]:
    response = server.client().post("/v1/score", json=body)
    return response.status_code, public_scores(response.json()) if response.status_code == 200 else response.json()


def test_what_does_not_fit_is_413_and_everybody_else_is_answered(serve: Serve) -> None:
    ample, model = serve(), SmallMemory(cap=600)
    server = serve(toy_loaded(model=model))
    long = "the red gate " * 200
    small = [request_body(f"gate {number}") for number in range(8)]
    expected = [scores_of(ample, body) for body in small]
    with concurrent.futures.ThreadPoolExecutor(9) as clients:
        large = clients.submit(scores_of, server, many_questions(long))
        found = list(clients.map(lambda body: scores_of(server, body), small))
    status, refused = large.result()
    assert (status, refused["error"]["code"]) == (413, "request_too_large")
    assert "CUDA" not in str(refused)
    assert found == expected
    assert model.failures > 1
    assert scores_of(server, small[0]) == expected[0]
    assert server.client().get("/readyz").status_code == 200


def test_one_failure_is_made_good_and_only_rows_that_are_read_are_kept(serve: Serve) -> None:
    ample, model = serve(), SmallMemory(cap=10_000)
    server = serve(toy_loaded(model=model))
    body = many_questions("the red gate " * 20)
    assert scores_of(server, body) == scores_of(ample, body)
    assert model.failures == 1
    reads = sum(reads for reads, _ in model.hidden)
    assert all(reads == kept for reads, kept in model.hidden)
    assert reads == 2 * QUESTIONS  # one a question, with a content and without
