from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_core.errors import Rejected
from spinf_core.protocol import json_loads, parse_request

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def rejection(body: bytes) -> tuple[str, str | None]:
    with pytest.raises(Rejected) as caught:
        json_loads(body)
    caught.value.message.encode()
    return caught.value.code, caught.value.param


@given(JSON)
def test_json_is_read_as_python_reads_it(value: object) -> None:
    body = json.dumps(value).encode()
    assert json_loads(body) == json.loads(body)


@given(st.binary())
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    try:
        json_loads(body)
        code = "none"
    except Rejected as error:
        code = error.code
    assert code in ("none", "invalid_json", "invalid_field")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a': 1}", b'{"a": 1,}', b"[] []", b"\xff", b'"\xed\xa0\x80"', "{}".encode("utf-16"), b'"\n"']
)
def test_what_is_not_utf8_json_is_refused(body: bytes) -> None:
    assert rejection(body) == ("invalid_json", None)


def test_a_byte_order_mark_is_skipped() -> None:
    assert json_loads(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_the_last_of_duplicate_keys_counts_and_nul_is_kept() -> None:
    assert json_loads(b'{"a": 1, "a": "x\\u0000y"}') == {"a": "x\0y"}


@pytest.mark.parametrize("depth", [101, 1000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_refused(depth: int, opening: bytes, closing: bytes) -> None:
    assert rejection(opening * depth + b"1" + closing * depth) == ("invalid_json", None)
    assert rejection(opening * depth) == ("invalid_json", None)


def test_nesting_to_the_bound_is_read_anywhere() -> None:
    json_loads(b"[" * 100 + b"]" * 100)
    thread_result: list[object] = []
    thread = threading.Thread(target=lambda: thread_result.append(json_loads(b"[" * 100 + b"]" * 100)))
    thread.start()
    thread.join()
    assert len(thread_result) == 1


def test_brackets_inside_strings_do_not_nest() -> None:
    strings = ["[" * 500, '"]}' * 500, "\\"]
    assert json_loads(json.dumps(strings).encode()) == strings
    hidden = b'["]",' * 101 + b"1" + b"]" * 101
    assert rejection(hidden) == ("invalid_json", None)


def test_two_mebibytes_of_brackets_are_refused_quickly() -> None:
    start = time.perf_counter()
    for body in (b"[" * 2**21, b"[]" * 2**20, b'"[' * 2**20, (b"[" * 90 + b"]" * 90 + b",") * 11_000):
        assert rejection(body)[0] == "invalid_json"
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"scoring": {"queries": [{"calibration": {"a": NaN}}]}}', "scoring.queries.0.calibration.a"),
        (b'{"a": [1, -Infinity]}', "a.1"),
        (b"Infinity", None),
        (b'{"a": NaN, "a": 1}', None),
    ],
)
def test_numbers_that_json_lacks_are_refused_by_name(body: bytes, param: str | None) -> None:
    assert rejection(body) == ("invalid_field", param)


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000, b"-" + b"9" * 5000])
def test_numbers_beyond_range_are_refused_by_their_field(number: bytes) -> None:
    query = b'{"id": "a", "template": "{*}", "generate": {"temperature": ' + number + b"}}"
    body = json_loads(b'{"messages": [], "scoring": {"queries": [' + query + b"]}}")
    with pytest.raises(Rejected) as caught:
        parse_request(body)
    assert (caught.value.code, caught.value.param) == ("invalid_field", "scoring.queries.0.generate.temperature")


def test_a_lone_surrogate_is_refused_by_its_field_and_a_pair_is_read() -> None:
    body = b'{"messages": [{"content": "%s"}], "scoring": {"queries": [{"id":"a","template":"{?}","options":["a"]}]}}'
    assert parse_request(json_loads(body % rb"\ud83d\ude00")).inputs[0].content == "😀"
    with pytest.raises(Rejected) as caught:
        parse_request(json_loads(body % rb"\ud83d"))
    assert (caught.value.code, caught.value.param) == ("invalid_field", "messages.0.content")
