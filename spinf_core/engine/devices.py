"""Which device runs: the one asked for, by number or by a GPU's UUID, or what the stack prefers."""

from __future__ import annotations

import torch

from spinf_core.errors import SetupError
from spinf_core.records import ModelStack
from spinf_core.registry import Registered

UUID = "GPU-"


def choose_device(asked: str, stack: Registered[ModelStack]) -> torch.device:
    """The device asked for, or the stack's preferred one that is here.

    Args:
        asked: `auto`, `cpu`, `cuda`, `cuda:N`, or a GPU's UUID as `nvidia-smi -L` prints it, `GPU-…`, or the beginning of one.
        stack: that will run on it.

    Raises:
        SetupError: the device is not here, or the stack does not run on it.
    """
    runs_on = stack.record.devices
    if asked == "auto":
        return torch.device("cuda:0" if "cuda" in runs_on and torch.cuda.is_available() else "cpu")
    by_uuid = asked.lower().startswith(UUID.lower())
    try:
        device = torch.device("cuda" if by_uuid else asked)
    except RuntimeError:
        raise SetupError(f"device {asked!r} is not known; use auto, cpu, cuda, cuda:N or a GPU's UUID, GPU-…") from None
    if device.type not in runs_on:
        raise SetupError(f"the {stack.record.family} stack of {stack.origin} runs on {' and '.join(runs_on)}, not on {asked}")
    if by_uuid:
        return _gpu_of_uuid(asked)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SetupError(f"device {asked!r} is not here; torch {torch.__version__} sees {torch.cuda.device_count()} GPUs")
    return device


def _gpu_of_uuid(asked: str) -> torch.device:
    """The GPU whose UUID begins so, in any case."""
    present = [uuid_of(number) for number in range(torch.cuda.device_count())]
    found = [number for number, uuid in enumerate(present) if uuid.lower().startswith(asked.lower())]
    if len(found) == 1:
        return torch.device("cuda", found[0])
    listed = ", ".join(f"{uuid} (cuda:{number})" for number, uuid in enumerate(present))
    if found:
        raise SetupError(f"device {asked!r} is the beginning of {len(found)} UUIDs; write more of it: {listed}")
    seen = f"the GPUs here are {listed}" if present else f"torch {torch.__version__} sees no GPU"
    raise SetupError(f"device {asked!r} is not here; {seen}")


def uuid_of(number: int) -> str:
    """A GPU's UUID as `nvidia-smi -L` prints it."""
    return f"{UUID}{torch.cuda.get_device_properties(number).uuid}"
