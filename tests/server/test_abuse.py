"""Callers that do odd things to the connection, the headers or the body: a clear answer, and no harm to the next one."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import time
from typing import Any

import pytest

from spinf_core.protocol import ScoreResponse
from spinf_core.server import state
from spinf_core.testing.toy import ToyModel

from .conftest import LiveServer, Serve, request_body

BODY = json.dumps(request_body()).encode()


def connect(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10)


def request(body: bytes = BODY, length: int | None = None, version: str = "1.1", *headers: str) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST /v1/score HTTP/{version}", "Host: x", f"Content-Length: {size}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def answer(server: LiveServer, sent: bytes) -> bytes:
    """All that comes back until the server hangs up."""
    with connect(server) as raw:
        raw.sendall(sent)
        found = b""
        while part := raw.recv(65536):
            found += part
    return found


def test_http_1_0_is_answered(server: LiveServer) -> None:
    assert answer(server, request(version="1.0")).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_answered_in_order(server: LiveServer) -> None:
    bodies = [json.dumps(request_body(endpoint=name)).encode() for name in "abc"]
    last = request(bodies[2], None, "1.1", "Connection: close")
    found = answer(server, request(bodies[0]) + request(bodies[1]) + last)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.index(b'"endpoint": "a"') < found.index(b'"endpoint": "b"') < found.index(b'"endpoint": "c"')


@pytest.mark.parametrize("length", ["abc", "-5", "+5", "²", "9" * 25])
def test_a_bad_length_is_refused_and_the_connection_closed(server: LiveServer, length: str) -> None:
    sent = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode("latin-1")
    assert answer(server, sent).split()[1] in (b"400", b"413")
    assert server.client().get("/readyz").status_code == 200


def test_health_answers_head(server: LiveServer) -> None:
    client = server.client()
    found = [client.head(path) for path in ("/healthz", "/readyz", "/livez")]
    assert [(response.status_code, response.content) for response in found] == [(200, b"")] * 3


def test_a_compressed_body_is_refused_by_its_encoding(server: LiveServer) -> None:
    response = server.client().post("/v1/score", content=gzip.compress(BODY), headers={"Content-Encoding": "gzip"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    assert "content-encoding gzip" in response.json()["error"]["message"]
    same = server.client().post("/v1/score", content=BODY, headers={"Content-Encoding": "Identity"})
    assert same.status_code == 200


def test_a_token_may_have_any_character(serve: Serve) -> None:
    server = serve(server__token="clé-秘密")
    for token, status in (("clé-秘密", 200), ("cle-秘密", 401)):
        headers = {"Authorization": f"Bearer {token}".encode()}
        assert server.client().post("/v1/score", content=BODY, headers=headers).status_code == status  # type: ignore[arg-type]


@pytest.mark.parametrize(("of", "name"), [(state, "finished"), (ScoreResponse, "to_json")], ids=["front end", "service"])
def test_a_fault_of_ours_is_logged_once_and_answered_blandly_with_its_id(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: Any, name: str
) -> None:
    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(of, name, broken)
    with caplog.at_level(logging.ERROR):
        response = server.client().post("/v1/score", content=BODY)
    body = response.json()
    assert (response.status_code, body["error"]["code"]) == (500, "engine_error")
    assert response.headers["x-request-id"] == body["request_id"]
    assert "secret" not in response.text
    assert [body["request_id"] in record.getMessage() for record in caplog.records if record.exc_info] == [True]


def test_a_body_that_does_not_arrive_is_given_up(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BODY_SECONDS", 0.1)
    found = answer(server, request(b"{", 1000, "1.1"))  # returns once the server has closed the connection
    assert found.startswith(b"HTTP/1.1 408")
    assert b'"type":"invalid_request"' in found
    assert b"did not arrive" in found


def test_bodies_that_arrive_together_are_bounded(serve: Serve) -> None:
    server = serve(server__queue=2, server__max_body_bytes=50_000)
    held = [connect(server) for _ in range(3)]
    for raw in held[:2]:
        raw.sendall(request(b" " * 49_000, 49_500))
    while server.state.arriving < 98_000:
        time.sleep(0.005)
    held[2].sendall(request(b" " * 10_000, 20_000))
    assert b"429" in held[2].recv(20)
    for raw in held:
        raw.close()
    while server.state.arriving:
        time.sleep(0.005)
    assert server.client().post("/v1/score", content=BODY).status_code == 200


def test_a_thousand_connections_that_hang_up_leave_nothing_behind(server: LiveServer) -> None:
    for number in range(1000):
        with connect(server) as raw:
            raw.sendall(request()[: (40, 200, len(request()))[number % 3]])
    # Those that were still on their way may fill the queue for a moment.
    deadline = time.monotonic() + 20
    found = None
    while found != (200, 0, 0) and time.monotonic() < deadline:
        status = server.client().post("/v1/score", content=BODY).status_code
        found = status, server.state.service.waiting, server.state.arriving
        time.sleep(0.005)
    assert found == (200, 0, 0)


def test_a_path_cannot_write_lines_of_its_own_into_the_log(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spinf.http"):
        server.client().get("/v1/x%0A2030-01-01%20INFO%20all%20is%20well")
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:  # the line is written once the response is on its way
            time.sleep(0.005)
    (record,) = caplog.records
    assert record.getMessage() == "GET /v1/x%0A2030-01-01%20INFO%20all%20is%20well"


def test_a_score_that_is_not_a_number_is_logged_and_answered_as_our_fault(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = ToyModel.read
    monkeypatch.setattr(ToyModel, "read", lambda *arguments: tuple(value * float("nan") for value in read(*arguments)))
    with caplog.at_level(logging.ERROR):
        response = server.client().post("/v1/score", content=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
    assert any(response.json()["request_id"] in record.getMessage() for record in caplog.records)
