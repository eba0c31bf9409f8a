"""The fingerprint: an opaque hash of all that moves a score."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from spinf_core.quant.interface import Scheme
from spinf_core.stack import Model

NUMERICS = 4
"""Raised whenever core's own arithmetic changes: `nn`, packing, reading, scoring."""


def device_name(device: torch.device) -> str:
    """The model of the device; for a CPU with its instruction set and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def compilers(device: torch.device) -> str:
    """The version of torch, and where kernels run, of Triton, which may be another one than torch came with."""
    if device.type == "cpu":
        return torch.__version__
    import triton

    return f"{torch.__version__}, triton {triton.__version__}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def inputs(
    revision: str,
    model: Model,
    scheme: Scheme,
    head_precision: str,
    sizes: tuple[int, ...],
    stack_options: Mapping[str, str],
) -> dict[str, str]:
    """What the fingerprint and the self-test's key are made of."""
    return {
        "revision": revision,
        "tokenizer": model.tokenizer.hash,
        "scheme": f"{scheme.name} {scheme.numerics} {getattr(scheme, 'source', '')}".rstrip(),
        "head": f"{model.head} {model.dtype} {head_precision}",
        "numerics": f"core {NUMERICS}, stack {type(model).__module__} {model.numerics}",
        "torch": compilers(model.device),
        "device": device_name(model.device),
        "sizes": " ".join(map(str, sizes)),
        "stack options": json.dumps(dict(stack_options), sort_keys=True),
    }


def digest(values: Mapping[str, str]) -> str:
    """32 hex digits of a canonical JSON form."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def system_fingerprint(values: Mapping[str, str], self_test_digest: str, invariant: bool) -> str:
    """`fp_` and 16 hex digits; ends in `_v` where scores vary with the packing."""
    whole = digest({**values, "self-test": self_test_digest, "invariant": str(invariant)})
    return f"fp_{whole[:16]}" + ("" if invariant else "_v")
