"""A server as a process: listening, signals, stopping."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from .conftest import request_body

ROOT = Path(__file__).parents[2]


class ToyProcess:
    """`spinf serve` of the toy model."""

    def __init__(self, *flags: str, loading: float = 0, a_pass: float = 0, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.server.toy_process", str(loading), str(a_pass), "--port", str(port), *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | {"SPINF_PLUGINS": ""}
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        """The first line that holds a text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.lines))

    def listen(self) -> str:
        """Its URL, once it listens."""
        found = re.search(r"http://\S+", self.read_until("listening on"))
        assert found
        return found[0]

    def end(self) -> tuple[int, str]:
        """Its exit status and all that it wrote."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr
        return self.process.wait(30), "".join(self.lines)


Start = Callable[..., ToyProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[ToyProcess] = []

    def begin(*flags: str, **options: float) -> ToyProcess:
        started.append(ToyProcess(*flags, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for server in started:
        server.process.kill()
        server.process.wait()


def test_the_port_that_the_system_chose_is_printed(start: Start) -> None:
    server = start()
    url = server.listen()
    server.read_until("ready")
    assert not url.endswith(":0")
    assert httpx.get(f"{url}/readyz").status_code == 200


def test_a_port_in_use_is_named_before_anything_is_loaded(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, text = start(port=port).end()
    assert status == 2
    assert f"cannot listen on 127.0.0.1:{port}" in text
    assert "loading" not in text
    assert "listening" not in text


def test_a_slow_load_is_listening_at_once_and_ready_only_when_it_is_done(start: Start) -> None:
    server = start(loading=1.5)
    url = server.listen()
    seen: list[list[int]] = []
    while not seen or seen[-1] != [200, 200, 200]:
        seen.append([httpx.get(url + path).status_code for path in ("/healthz", "/livez", "/readyz")])
        time.sleep(0.02)
    assert len(seen) > 3
    assert all(found == [200, 503, 503] for found in seen[:-2])
    assert score(url, 1) == 200


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_ends_the_process_at_once(start: Start, sent: signal.Signals) -> None:
    server = start(loading=60)
    server.listen()
    server.read_until("loading")
    server.process.send_signal(sent)
    assert server.end()[0] == 0


def score(url: str, number: int) -> int:
    """The status; 0 where the server did not accept the connection."""
    try:
        return httpx.post(f"{url}/v1/score", json=request_body(f"gate {number}"), timeout=30).status_code
    except httpx.TransportError:
        return 0


def test_no_accepted_request_is_lost_when_a_loaded_server_is_told_to_stop(start: Start) -> None:
    server = start(a_pass=0.05)
    url = server.listen()
    server.read_until("ready")
    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        answers = [clients.submit(score, url, number) for number in range(120)]
        while sum(answer.done() for answer in answers) < 20:
            time.sleep(0.01)
        waiting = int(re.search(r"spinf_waiting_requests (\d+)", httpx.get(f"{url}/metrics").text)[1])  # type: ignore[index]
        server.process.send_signal(signal.SIGTERM)
        found = [answer.result() for answer in answers]
    status, text = server.end()
    assert status == 0
    assert set(found) <= {200, 503, 0}
    assert found.count(200) >= 20 + waiting
    assert "Traceback" not in text


def test_a_second_signal_stops_at_once_and_refuses_what_waits(start: Start) -> None:
    server = start(a_pass=2)
    url = server.listen()
    server.read_until("ready")
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        body = request_body()
        body["inputs"] = [{"messages": body.pop("messages")}] * 1000
        answer = clients.submit(httpx.post, f"{url}/v1/score", json=body, timeout=60)
        while "spinf_waiting_requests 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "draining")
    assert server.end()[0] == 0
    assert time.monotonic() - began < 10


def test_what_takes_longer_than_the_drain_is_refused_in_the_envelope(start: Start) -> None:
    server = start("--drain-seconds", "1", a_pass=0.5)
    url = server.listen()
    server.read_until("ready")
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        body = request_body()
        body["inputs"] = [{"messages": body.pop("messages")}] * 1000
        answer = clients.submit(httpx.post, f"{url}/v1/score", json=body, timeout=60)
        while "spinf_waiting_requests 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        refused = answer.result()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert refused.headers["x-request-id"] == refused.json()["request_id"]
    assert server.end()[0] == 0


def test_a_server_whose_memory_stays_taken_answers_and_exits_to_be_started_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKING", "1")
    server = start()
    url = server.listen()
    server.read_until("ready")
    assert score(url, 1) == 200
    refused = httpx.post(f"{url}/v1/score", json=request_body("é" * 40), timeout=30)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    status, text = server.end()
    assert status == 3
    assert "3.0 GB of the device's memory stayed taken" in text
    assert "Traceback" not in text


def test_a_server_that_gets_its_memory_back_goes_on(start: Start) -> None:
    server = start()
    url = server.listen()
    server.read_until("ready")
    assert httpx.post(f"{url}/v1/score", json=request_body("é" * 40), timeout=30).status_code == 413
    time.sleep(0.3)
    assert score(url, 1) == 200
    assert httpx.get(f"{url}/readyz").status_code == 200
