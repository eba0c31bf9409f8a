"""Health over the life of a server, bodies that are too large, clients that hang up, and stopping."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from .conftest import LiveServer, Serve, request_body, toy_loaded
from .test_service import GatedModel


def statuses(client: httpx.Client) -> list[int]:
    return [client.get(path).status_code for path in ("/healthz", "/livez", "/readyz")]


def test_a_loading_server_is_neither_live_nor_ready(serve: Serve) -> None:
    client = serve(ready=False).client()
    assert statuses(client) == [200, 503, 503]
    assert client.get("/readyz").json() == {"ready": False, "error": "warming_up"}
    refused = client.post("/v1/score", json=request_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "warming_up")
    assert refused.headers["retry-after"].isdigit()


def test_a_draining_server_is_live_but_not_ready(server: LiveServer) -> None:
    client = server.client()
    assert client.post("/v0/drain").json() == {"draining": True, "waiting": 0}
    assert statuses(client) == [200, 200, 503]
    assert client.get("/readyz").json() == {"ready": False, "draining": True}
    refused = client.post("/v1/score", json=request_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    client.delete("/v0/drain")
    assert statuses(client) == [200, 200, 200]
    assert client.post("/v1/score", json=request_body()).status_code == 200


def test_a_server_whose_engine_died_is_never_ready_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/sgl-project/sglang/pull/33787"""
    server = serve()
    client = server.client()
    assert statuses(client) == [200, 200, 200]

    def die(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(server.state.service._scorer, "launch", die)
    lost = client.post("/v1/score", json=request_body())
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "model_unavailable")
    assert statuses(client) == [200, 503, 503]


def test_a_full_queue_is_429_with_a_number(serve: Serve) -> None:
    model = GatedModel()
    server = serve(toy_loaded(model=model), server__queue=1)
    first = threading.Thread(target=lambda: server.client().post("/v1/score", json=request_body()))
    first.start()
    while not server.state.service.waiting:
        time.sleep(0.005)
    refused = server.client().post("/v1/score", json=request_body())
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    model.gate.set()
    first.join()


def test_a_client_that_hangs_up_frees_its_place(serve: Serve) -> None:
    """https://github.com/ROCm/ATOM/pull/1562"""
    model = GatedModel()
    server = serve(toy_loaded(model=model), server__queue=1)
    body = request_body()
    query = body["scoring"]["queries"][0]
    body["scoring"]["queries"] = [query | {"id": str(n), "template": f"\n{n}: is it red?\nAnswer:{{?}}"} for n in range(300)]
    payload = json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
    connection.request("POST", "/v1/score", payload)
    assert model.entered.wait(20)
    connection.sock.close()
    while server.state.service.waiting:
        time.sleep(0.005)
    model.gate.set()
    assert server.client().post("/v1/score", json=request_body()).status_code == 200
    assert server.state.service.statistics().requests == {"cancelled": 1, "ok": 1}
    ran_of_both = sum(model.passes)
    assert server.client().post("/v1/score", content=payload).status_code == 200
    assert sum(model.passes) - ran_of_both > 4 * ran_of_both


def chunks(size: int, filler: bytes = b" ") -> Iterator[bytes]:
    for _ in range(size // 1000):
        yield filler * 1000
    yield filler * (size % 1000)


@pytest.mark.parametrize("over", [1, 5_000_000])
def test_a_streamed_body_over_the_limit_is_refused_while_it_streams(serve: Serve, over: int) -> None:
    """https://github.com/NousResearch/hermes-agent/pull/4185"""
    client = serve(server__max_body_bytes=10_000).client()
    refused = client.post("/v1/score", content=chunks(10_000 + over))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    exact = json.dumps(request_body()).encode()
    assert client.post("/v1/score", content=iter([exact, b" " * (10_000 - len(exact))])).status_code == 200


def test_endless_white_space_is_cut_off(serve: Serve) -> None:
    server = serve(server__max_body_bytes=10_000)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as raw:
        raw.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 50_000_000:
                raw.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
                sent += 4096
    assert sent < 50_000_000
    assert statuses(server.client()) == [200, 200, 200]


def test_a_large_body_delays_no_health_probe(server: LiveServer) -> None:
    client = server.client()
    delays: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.is_set():
            began = time.perf_counter()
            client.get("/healthz")
            delays.append(time.perf_counter() - began)
            time.sleep(0.002)

    prober = threading.Thread(target=probe)
    prober.start()
    with server.client() as other:
        assert other.post("/v1/score", content=b'{"messages": "' + b"x" * 25_000_000 + b'"}').status_code == 413
        body = json.dumps(request_body("word " * 390_000)).encode()
        assert other.post("/v1/score", content=body).json()["error"]["code"] == "content_too_long"
    done.set()
    prober.join()
    assert len(delays) > 5
    assert max(delays) < 0.15  # counting the tokens of the second body takes longer


def spinf_serve(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spinf_core.cli.main", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )


def test_a_missing_checkpoint_stops_the_server_at_once() -> None:
    process = spinf_serve("no/such/folder", "--port", "0", HF_HUB_OFFLINE="1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "no/such" in errors
    assert "Traceback" not in errors


@pytest.mark.weights
def test_a_stopping_server_finishes_what_it_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = spinf_serve("--port", str(port), "--log-format", "json", "--warmup", "none")
    url = f"http://127.0.0.1:{port}"
    seen: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            status = (httpx.get(f"{url}/healthz").status_code, httpx.get(f"{url}/readyz").status_code)
        except httpx.TransportError:
            time.sleep(0.02)
            continue
        seen.add(status)
        if status[1] == 200:
            break
        time.sleep(0.05)
    assert seen == {(200, 503), (200, 200)}
    answers: list[int] = []
    body = request_body("A long story. " * 60)
    caller = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/score", json=body, timeout=60).status_code))
    caller.start()
    while "spinf_waiting_requests 1.0" not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    refused = httpx.post(f"{url}/v1/score", json=request_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert process.wait(60) == 0
    caller.join()
    assert answers == [200]
    assert process.stderr is not None
    lines = [json.loads(line) for line in process.stderr.read().splitlines() if line.startswith("{")]
    assert {"POST /v1/score"} <= {line["message"] for line in lines}
    assert "long story" not in json.dumps(lines)
