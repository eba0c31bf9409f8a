"""From the bytes of a body to a JSON value, strictly."""

from __future__ import annotations

import json
import math
import re

from spinf_core.errors import Rejected
from spinf_core.protocol.text import segment

MAX_NESTING = 100
"""Objects and lists within one another. The request itself needs about a dozen; the rest is room for fields that other
SDKs send. Bounded before parsing, because the parser recurses in C and a thread's stack may be small."""

_MAX_DIGITS = 400  # no float is longer; Python refuses to parse integers of thousands of digits
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def json_loads(body: bytes) -> object:
    """Parse a request body.

    NUL characters are kept, the last of duplicate keys counts, and numbers too large for a float become infinite, for
    the field's own check to refuse.

    Raises:
        Rejected: `invalid_json` for a body that is not UTF-8 JSON or is nested deeper than `MAX_NESTING`;
            `invalid_field` naming the field for the literals NaN and Infinity, which JSON does not have.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected("invalid_json", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    _check_nesting(body)
    literals: list[str] = []

    def constant(literal: str) -> float:
        literals.append(literal)
        return float(literal)

    try:
        value: object = json.loads(text, parse_int=_integer, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise Rejected("invalid_json", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Rejected("invalid_json", "the body is nested too deeply") from None
    if literals:
        param = _path_of_non_finite(value)
        raise Rejected("invalid_field", f"{param or 'a field'} is {literals[0]}, which is not a JSON number", param)
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _check_nesting(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(MAX_NESTING):
        # Each round takes the innermost level away; a rest that no round shortens is unbalanced.
        outer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    if len(brackets) > MAX_NESTING or (brackets and brackets.replace(b"[]", b"").replace(b"{}", b"") != brackets):
        raise Rejected("invalid_json", f"the body is nested deeper than {MAX_NESTING} levels, or its brackets do not match")


def _path_of_non_finite(value: object) -> str | None:
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        path, found = pending.pop()
        if isinstance(found, float) and not math.isfinite(found):
            return path or None
        children: list[tuple[object, object]] = []
        if isinstance(found, dict):
            children = list(found.items())
        elif isinstance(found, list):
            children = list(enumerate(found))
        prefix = f"{path}." if path else ""
        pending += [(prefix + segment(key), child) for key, child in reversed(children)]
    return None
