"""The HTTP contract: paths, envelopes, request ids, tokens, trust."""

from __future__ import annotations

import json

import pytest

from .conftest import LiveServer, Serve, request_body


def error_of(response):
    body = response.json()
    assert response.headers["x-request-id"] == body["request_id"]
    return response.status_code, body["error"]["type"], body["error"]["code"], body["error"]["param"]


def test_a_request_is_scored(server: LiveServer) -> None:
    response = server.client().post("/v1/score", json=request_body(model="TOY", endpoint="label"))
    body = response.json()
    assert response.status_code == 200
    assert response.headers["x-request-id"] == body["id"]
    assert body["id"].startswith("scr_")
    assert (body["object"], body["model"], body["endpoint"]) == ("score", "TOY", "label")
    options = body["results"][0]["queries"][0]["combinations"][0]["options"]
    assert sum(option["p"] for option in options) == pytest.approx(1, abs=2e-6)


def test_the_chat_path_answers_the_same_with_no_choices(server: LiveServer) -> None:
    client = server.client()
    chat = client.post("/v1/chat/completions", json=request_body()).json()
    assert chat["choices"] == []
    assert chat["results"] == client.post("/v1/score", json=request_body()).json()["results"]


def test_the_chat_path_without_scoring_says_so(server: LiveServer) -> None:
    client = server.client()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert error_of(client.post("/v1/chat/completions", json=body)) == (400, "invalid_request", "scoring_required", "scoring")
    assert error_of(client.post("/v1/score", json=body)) == (400, "invalid_request", "invalid_field", "scoring")


def test_errors_of_the_compiler_name_the_field(server: LiveServer) -> None:
    body = request_body()
    body["scoring"]["queries"][1]["options"] = [" yes", "tus"]
    body["scoring"]["queries"][1]["template"] = "\nThe sta{?}"
    assert error_of(server.client().post("/v1/score", json=body)) == (
        400,
        "invalid_request",
        "option_boundary",
        "scoring.queries.1.options.1",
    )


def test_a_body_that_is_no_json_is_refused(server: LiveServer) -> None:
    assert error_of(server.client().post("/v1/score", content=b"{")) == (400, "invalid_request", "invalid_json", None)


@pytest.mark.parametrize("path", ["/", "/v1/nothing", "/v2/score", "/v1/score/"])
def test_an_unknown_path_is_404_in_the_envelope(server: LiveServer, path: str) -> None:
    assert error_of(server.client().get(path)) == (404, "not_found", "not_found", None)


def test_a_wrong_method_is_405_in_the_envelope(server: LiveServer) -> None:
    response = server.client().get("/v1/score")
    assert error_of(response) == (405, "invalid_request", "method_not_allowed", None)
    assert response.headers["allow"] == "POST"


def test_another_model_is_refused(server: LiveServer) -> None:
    response = server.client().post("/v1/score", json=request_body(model="gpt"))
    assert error_of(response) == (400, "invalid_request", "model_not_served", "model")


def test_models_satisfy_both_clients(server: LiveServer) -> None:
    body = server.client().get("/v1/models").json()
    assert (body["object"], [entry["id"] for entry in body["data"]]) == ("list", ["toy"])
    assert body["data"][0]["object"] == "model"
    (entry,) = body["models"]
    assert entry["limits"]["max_content_tokens"] == 4096
    assert entry["batch_invariant"] is True


def test_there_are_no_packs(server: LiveServer) -> None:
    client = server.client()
    assert client.get("/v1/packs").json() == {"packs": []}
    assert error_of(client.get("/v1/packs/spinf/moderation")) == (404, "not_found", "unknown_pack", None)


@pytest.mark.parametrize("header", ["", "Basic x", "Bearer", "Bearer other", "Bearer secrets"])
def test_a_wrong_token_is_401(serve: Serve, header: str) -> None:
    client = serve(server__token="secret").client()
    response = client.post("/v1/score", json=request_body(), headers={"Authorization": header})
    assert error_of(response) == (401, "authentication_error", "invalid_token", None)


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "BEARER  secret"])
def test_the_scheme_is_read_in_any_case(serve: Serve, header: str) -> None:
    client = serve(server__token="secret").client()
    assert client.post("/v1/score", json=request_body(), headers={"Authorization": header}).status_code == 200


def test_health_needs_no_token(serve: Serve) -> None:
    client = serve(server__token="secret").client()
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/livez", "/metrics")] == [200, 200, 200, 401]


def test_only_a_trusted_token_sends_limits(serve: Serve) -> None:
    server = serve(server__token="secret", server__trusted_token="deep")
    body = request_body(limits={"max_options": 1})
    assert server.client("secret").post("/v1/score", json=body).status_code == 200
    response = server.client("deep").post("/v1/score", json=body)
    assert error_of(response)[2] == "too_many_options"
    assert response.json()["rejected"]["code"] == "too_many_options"
    assert server.client("secret").get("/v0/info").status_code == 401
    assert server.client("deep").get("/v0/info").json()["model"] == "toy"


def test_holders_of_the_only_token_are_trusted(serve: Serve) -> None:
    response = serve(server__token="secret").client("secret").post("/v1/score", json=request_body(limits={"max_options": 1}))
    assert error_of(response)[2] == "too_many_options"


def test_info_shows_no_secret(serve: Serve) -> None:
    body = serve(server__token="hunter2").client("hunter2").get("/v0/info")
    assert body.json()["system_fingerprint"] == "fp_toy"
    assert "hunter2" not in body.text


def test_formed_prompts_are_scored_as_they_are(server: LiveServer) -> None:
    client = server.client()
    formed = {"prompts": [{"id": "a", "prompt": "The red gate is in the", "options": [" north", " wing"]}]}
    (result,) = client.post("/v0/score", json=formed).json()["results"]
    body = request_body("The red gate is in")
    body["scoring"]["queries"] = [{"id": "x", "template": " the{?}", "options": [" north", " wing"]}]
    expected = client.post("/v1/score", json=body).json()["results"][0]["queries"][0]["combinations"][0]["options"]
    assert [option["logprob"] for option in result["options"]] == [option["logprob"] for option in expected]


def test_errors_of_formed_prompts_name_the_prompt(server: LiveServer) -> None:
    client = server.client()
    formed = {"prompts": [{"prompt": "The", "options": [" a"]}, {"prompt": "The", "options": [" a", " A"]}]}
    assert error_of(client.post("/v0/score", json=formed))[2:] == ("duplicate_option", "prompts.1.options.1")
    assert error_of(client.post("/v0/score", json={"prompts": [{"options": [" a"]}]}))[3] == "prompts.0.prompt"
    assert error_of(client.post("/v0/score", json={}))[3] == "prompts"


def test_metrics_count_requests_by_outcome(server: LiveServer) -> None:
    client = server.client()
    client.post("/v1/score", json=request_body())
    client.post("/v1/score", json=request_body(model="gpt"))
    text = client.get("/metrics").text
    assert 'spinf_requests_total{outcome="ok"} 1.0' in text
    assert 'spinf_requests_total{outcome="model_not_served"} 1.0' in text
    assert "spinf_questions_total 2.0" in text


def test_debug_shows_packed_tokens(serve: Serve) -> None:
    body = serve(server__debug=True).client().post("/v1/score", json=request_body()).json()
    assert body["engine"]["packed_tokens"] == body["usage"]["processed_tokens"]


def test_text_of_any_kind_survives_the_wire(server: LiveServer) -> None:
    body = request_body('naïve — 漢字 \u0000 🙂 \\ " </s>')
    response = server.client().post("/v1/score", content=json.dumps(body, ensure_ascii=False).encode())
    assert response.status_code == 200
