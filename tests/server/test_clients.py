"""Clients written for the hosted API, unmodified, against a live server."""

from __future__ import annotations

import threading
import time

import openai
import pytest
import spinf_client
from spinf_client import SpinfClient, SpinfError, query

from .conftest import LiveServer, Serve, request_body, toy_loaded
from .test_service import GatedModel

RED = query("red", "\nIs it red?\nAnswer:{?}", [" yes", " no"])


def client_of(server: LiveServer, key: str = "any", tries: int = 1) -> SpinfClient:
    return SpinfClient(api_key=key, base_url=server.url, model="toy", tries=tries)


def test_spinf_client_scores_one_content(server: LiveServer) -> None:
    response = client_of(server).score([spinf_client.text("A red gate")], [RED])
    answers = spinf_client.answers(response, "red")
    assert answers
    expected = server.client().post("/v1/score", json=request_body("A red gate")).json()["results"][0]["queries"][0]
    assert response["results"][0]["queries"][0] == expected


def test_spinf_client_scores_many_inputs_and_combinations(server: LiveServer) -> None:
    grid = query("colour", "\nIs it {x}?\nAnswer:{?}", [" yes", " no"], combinations=[{"x": "red"}, {"x": "blue"}])
    inputs = [{"id": name, "messages": [{"role": "user", "content": name}]} for name in ("a red gate", "the north wing")]
    response = client_of(server).score(inputs=inputs, queries=[grid, RED], empty_floor=False)
    assert [entry["input_id"] for entry in response["results"]] == ["a red gate", "the north wing"]
    for entry in response["results"]:
        colour, red = entry["queries"]
        assert [combination["values"] for combination in colour["combinations"]] == [{"x": "red"}, {"x": "blue"}]
        assert colour["combinations"][0]["options"] == red["combinations"][0]["options"]
        assert red["combinations"][0]["options"][0]["floor_p"] is None


def test_spinf_client_lists_models_and_packs(server: LiveServer) -> None:
    client = client_of(server)
    assert [entry["id"] for entry in client.models()["models"]] == ["toy"]
    assert client.list_packs() == {"packs": []}
    with pytest.raises(SpinfError) as missing:
        client.get_pack("spinf/moderation")
    assert (missing.value.status, missing.value.code) == (404, "unknown_pack")


def test_spinf_client_reads_errors(server: LiveServer) -> None:
    with pytest.raises(SpinfError) as refused:
        client_of(server).score([spinf_client.text("A")], [query("red", "\nRed?{?}", [" yes", "YES"])])
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "duplicate_option", "scoring.queries.0.options.1")


def test_spinf_client_tries_again_when_the_queue_is_full(serve: Serve) -> None:
    model = GatedModel()
    server = serve(toy_loaded(model=model), server__queue=1)
    first = threading.Thread(target=lambda: client_of(server).score([spinf_client.text("first")], [RED]))
    first.start()
    while not server.state.service.waiting:
        time.sleep(0.005)
    threading.Timer(0.2, model.gate.set).start()
    assert client_of(server, tries=5).score([spinf_client.text("second")], [RED])["results"]
    first.join()


def test_spinf_client_sends_its_token(serve: Serve) -> None:
    server = serve(server__token="secret")
    assert client_of(server, "secret").score([spinf_client.text("A")], [RED])["results"]
    with pytest.raises(SpinfError) as refused:
        client_of(server, "wrong").score([spinf_client.text("A")], [RED])
    assert (refused.value.status, refused.value.code) == (401, "invalid_token")


def test_spinf_client_sends_trusted_limits(serve: Serve) -> None:
    server = serve(server__token="secret", server__trusted_token="deep")
    body = request_body(limits={"max_options": 1})
    assert client_of(server, "secret").request(body)["results"]
    with pytest.raises(SpinfError) as refused:
        client_of(server, "deep").request(body)
    assert refused.value.code == "too_many_options"


def openai_of(server: LiveServer, key: str = "any", retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(api_key=key, base_url=f"{server.url}/v1", max_retries=retries)


def test_the_openai_sdk_scores(server: LiveServer) -> None:
    body = request_body()
    completion = openai_of(server).chat.completions.create(
        model="toy", messages=body["messages"], extra_body={"scoring": body["scoring"]}
    )
    assert completion.choices == []
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens
    assert completion.model_extra is not None
    assert completion.model_extra["results"] == server.client().post("/v1/score", json=body).json()["results"]


def test_the_openai_sdk_lists_models(server: LiveServer) -> None:
    assert [model.id for model in openai_of(server).models.list()] == ["toy"]


def test_the_openai_sdk_reads_errors(serve: Serve) -> None:
    server = serve(server__token="secret")
    with pytest.raises(openai.BadRequestError) as refused:
        openai_of(server, "secret").chat.completions.create(model="toy", messages=[{"role": "user", "content": "x"}])
    assert (refused.value.code, refused.value.param) == ("scoring_required", "scoring")
    with pytest.raises(openai.AuthenticationError):
        openai_of(server, "wrong").models.list()


def test_the_openai_sdk_tries_again_while_the_server_drains(server: LiveServer) -> None:
    server.state.draining = True
    threading.Timer(0.2, lambda: setattr(server.state, "draining", False)).start()
    body = request_body()
    scored = openai_of(server, retries=3).chat.completions.create(
        model="toy", messages=body["messages"], extra_body={"scoring": body["scoring"]}
    )
    assert scored.choices == []
