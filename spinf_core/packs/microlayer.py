"""The micro-layer: a linear or one-hidden-layer decision over category macros and reads, locked to what it was fitted on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from spinf_core.packs.file import MicroLayer
from spinf_core.packs.weights import unpack_weights

WARNING = "micro-layer lock mismatch: the pack was edited; using the fallback mode"


def lock_of(raw: Mapping[str, Any]) -> str:
    """The lock of a pack's JSON: `sha256:` of the canonical JSON of its queries, reads, Platt pairs and micro-layer inputs.

    Canonical means keys in order, no spaces, and everything but ASCII escaped; numbers are written as they were read.
    """
    covered = {
        "queries": raw["scoring"]["queries"],
        "reads": raw["reads"],
        "platt": {name: category["platt"] for name, category in raw["categories"].items()},
        "inputs": raw["decision"]["micro_layer"]["inputs"],
    }
    canonical = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def lock_fits(raw: Mapping[str, Any]) -> bool:
    """Whether a pack has a micro-layer whose lock fits the rest of the file."""
    micro = (raw.get("decision") or {}).get("micro_layer")
    return micro is not None and micro.get("lock") == lock_of(raw)


def layer_of(micro: MicroLayer) -> tuple[Callable[[list[float]], float], float]:
    """The layer's value over its inputs, and its own threshold.

    Without hidden units the weights are `[w…, b, threshold]` and the value is w · x + b. With h of them they are
    `[W1 (inputs × h), b1, w2, b2, threshold]` and the value is w2 · tanh(x W1 + b1) + b2.
    """
    weights = unpack_weights(micro.weights)
    count, hidden = len(micro.inputs), micro.hidden
    threshold = weights[-1]
    if not hidden:
        w, b = weights[:count], weights[count]
        return lambda x: sum(map(_product, w, x)) + b, threshold
    columns = [weights[unit : count * hidden : hidden] for unit in range(hidden)]
    b1, w2, b2 = weights[count * hidden :][:hidden], weights[(count + 1) * hidden :][:hidden], weights[-2]

    def value(x: list[float]) -> float:
        units = (math.tanh(sum(map(_product, column, x)) + bias) for column, bias in zip(columns, b1, strict=True))
        return sum(map(_product, w2, units)) + b2

    return value, threshold


def _product(a: float, b: float) -> float:
    return a * b
