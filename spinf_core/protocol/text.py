"""How values of the caller appear in paths and messages: short, and always encodable."""

from __future__ import annotations

import json

_SHOWN = 40


def has_lone_surrogate(text: str) -> bool:
    """Whether the text cannot be encoded: JSON's `\\ud800` escapes can spell half a character."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def segment(name: object) -> str:
    """A caller's own name as one step of a dotted path."""
    return str(name).encode("utf-8", "backslashreplace").decode()[:128]


def join(*steps: str) -> str:
    """A dotted path of the steps that are not empty."""
    return ".".join(step for step in steps if step)


def quoted(text: str) -> str:
    """The text in double quotes, escaped to ASCII and cut to a few words."""
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def described(value: object) -> str:
    """A JSON value in words, for `must be a string, not …`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, int):
        return f"the number {value}" if abs(value) < 10**_SHOWN else "a number of many digits"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f"a {type(value).__name__}"
