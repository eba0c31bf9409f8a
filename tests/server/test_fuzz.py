"""No body, however odd, is answered with a 5xx, and none stops the server from answering the next."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from .conftest import LiveServer, Serve, request_body

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**53, 1e308, -0.5, "", " ", "\u0000", "\ud800", "x" * 5000, "all", "<|end|>", "🙂" * 20),
    *("{?}", "{{", "}", "{n}", "{$}", "{*}"),
    *([], [[]], {}, {"text": "x"}, [None], ["a"] * 50, [{"x": "y"}], {"x": ["y"]}),
    *({"type": "text"}, {"type": "image_url", "image_url": {"url": "data:,"}}),
]
BODIES = 5000


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found += places(member, (*path, key))
    return found


def mutated(body: dict[str, Any], generator: random.Random) -> Any:
    body = copy.deepcopy(body)
    for _ in range(generator.randint(1, 3)):
        path = generator.choice(places(body))
        odd = copy.deepcopy(generator.choice(ODD))
        if not path:
            return odd
        parent = body
        for key in path[:-1]:
            parent = parent[key]
        how = generator.random()
        if how < 0.2 and isinstance(parent, dict):
            del parent[path[-1]]
        elif how < 0.3 and isinstance(parent, dict):
            parent[generator.choice(["limits", "packs", "n", "id", "values", "group", "generate", "features"])] = odd
        else:
            parent[path[-1]] = odd
    return body


def encoded(body: Any, generator: random.Random) -> bytes:
    text = json.dumps(body).encode("utf-8")
    how = generator.random()
    if how < 0.05:
        position = generator.randrange(len(text) + 1)
        return text[:position] + bytes(generator.choices(range(256), k=3)) + text[position:]
    if how < 0.08:
        depth = generator.choice([50, 500, 100_000])
        return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"
    if how < 0.1:
        return text[: generator.randrange(len(text) + 1)]
    return text


def test_fuzzed_bodies_give_no_5xx(serve: Serve) -> None:
    server: LiveServer = serve(server__max_body_bytes=300_000)
    generator = random.Random(20240229)
    full = request_body(endpoint="x", model="toy", limits={"max_options": 50}, features={"extraction": True})
    full["scoring"]["queries"].append(
        {
            "id": "grid",
            "template": "\nIs {x} red?\nAnswer:{?}",
            "options": [" yes", " no"],
            "combinations": [{"x": "it"}, {"x": "the gate"}],
            "empty_floor": False,
            "group": "g",
        }
    )
    many = {key: value for key, value in full.items() if key != "messages"}
    many["inputs"] = [{"id": "a", "messages": full["messages"], "query_ids": ["red"]}, {"messages": full["messages"]}]
    seen: dict[int, int] = {}
    with server.client() as client:
        for _ in range(BODIES):
            body = mutated(generator.choice([full, many]), generator)
            path = generator.choice(["/v1/score", "/v1/score", "/v1/chat/completions", "/v0/score"])
            response = client.post(path, content=encoded(body, generator))
            seen[response.status_code] = seen.get(response.status_code, 0) + 1
            assert response.status_code < 500, (path, body, response.text)
            if response.status_code != 200:
                error = response.json()["error"]
                assert error["code"]
                assert error["message"]
        assert client.post("/v1/score", json=request_body()).status_code == 200
    assert seen[200] > BODIES / 50
    assert seen[400] > BODIES / 2
