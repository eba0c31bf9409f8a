"""The micro-layer in a file: how its weights are written, and what may be wrong with them."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from typing import Any

from spinf_core.packs.checks import Checks, shown

_MICRO_LAYER = ("inputs", "hidden", "dtype", "weights", "lock")


def unpack_weights(text: str) -> tuple[float, ...]:
    """Base64 of little-endian float32 numbers.

    Raises:
        ValueError: it is not that.
    """
    content = base64.b64decode(text, validate=True)
    if len(content) % 4:
        raise ValueError(f"{len(content)} bytes are no whole number of float32")
    return struct.unpack(f"<{len(content) // 4}f", content)


def weight_count(inputs: int, hidden: int) -> int:
    """How many numbers a layer has: `[w…, b, threshold]`, or `[W1, b1, w2, b2, threshold]` with hidden units."""
    return inputs * hidden + 2 * hidden + 2 if hidden else inputs + 2


def check_micro_layer(found: Checks, value: object, categories: Mapping[str, Mapping[str, Any]], reads: frozenset[str]) -> None:
    """Note problems of `decision.micro_layer`."""
    where = "decision.micro_layer"
    if not isinstance(value, Mapping):
        found.add(where, f"must be an object, not {shown(value)}")
        return
    found.known(value, _MICRO_LAYER, where)
    inputs = found.texts(value, "inputs", where)
    for number, name in enumerate(inputs or ()):
        kind, colon, rest = name.partition(":")
        known: Any = {"c": categories, "r": reads}.get(kind) if colon else None
        if known is None:
            found.add(f"{where}.inputs.{number}", f'{shown(name)} must be "c:CATEGORY" or "r:READ"')
        elif rest not in known:
            what = "category" if kind == "c" else "read"
            found.add(f"{where}.inputs.{number}", f"{shown(name)} names no {what} of this pack")
    if inputs is not None and not inputs:
        found.add(f"{where}.inputs", "is empty")
    hidden = value.get("hidden", 0)
    if hidden is None:
        hidden = 0
    if type(hidden) is not int or hidden < 0:
        found.add(f"{where}.hidden", f"must be a number of hidden units, 0 for none, not {shown(hidden)}")
        hidden = None
    if value.get("dtype") != "float32":
        found.add(f"{where}.dtype", f'must be "float32", not {shown(value.get("dtype"))}')
    lock = found.text(value, "lock", where)
    if lock is not None and not re.fullmatch("sha256:[0-9a-f]{64}", lock):
        found.add(f"{where}.lock", "must be sha256: and 64 hex digits in lower case")
    text = found.text(value, "weights", where)
    if text is None:
        return
    try:
        weights = unpack_weights(text)
    except (ValueError, binascii.Error) as error:
        found.add(f"{where}.weights", f"must be base64 of little-endian float32 numbers: {error}")
        return
    if not all(map(found.is_number, weights)):
        found.add(f"{where}.weights", "holds a number that is not finite")
    if inputs and hidden is not None and len(weights) != weight_count(len(inputs), hidden):
        expected = weight_count(len(inputs), hidden)
        found.add(
            f"{where}.weights", f"holds {len(weights)} numbers; {len(inputs)} inputs and {hidden} hidden units take {expected}"
        )
