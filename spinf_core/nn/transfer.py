"""Arrays made on the host, moved to the device in one go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes; kernels are compiled for pointers that are multiples of it


def to_device(arrays: Mapping[str, NDArray[np.int32]], device: torch.device, into: Tensor | None = None) -> dict[str, Tensor]:
    """Int32 arrays on the device, shapes kept.

    On CUDA all travel in one copy from pinned memory, which neither waits for the work queued before nor lets the host wait: a
    copy from pageable memory would do both.

    Args:
        arrays: by name.
        device: where they go.
        into: on CUDA, where `room` numbers are, to write them there.
    """
    if device.type != "cuda":
        return {name: torch.from_numpy(np.ascontiguousarray(array, np.int32)) for name, array in arrays.items()}
    pinned = torch.empty(max(room(arrays), 1), dtype=torch.int32, pin_memory=True)
    host = pinned.numpy()
    for start, array in zip(_starts(arrays), arrays.values(), strict=True):
        host[start : start + array.size] = array.ravel()
    moved = pinned.to(device, non_blocking=True) if into is None else into.copy_(pinned, non_blocking=True)
    return {
        name: moved[start : start + array.size].view(array.shape)
        for start, (name, array) in zip(_starts(arrays), arrays.items(), strict=True)
    }


def room(arrays: Mapping[str, NDArray[np.int32]]) -> int:
    """How many numbers the arrays take, each from an aligned place on."""
    return sum(_aligned(array.size) for array in arrays.values())


def _starts(arrays: Mapping[str, NDArray[np.int32]]) -> list[int]:
    return [0, *accumulate(_aligned(array.size) for array in arrays.values())][:-1]


def _aligned(size: int) -> int:
    step = ALIGNMENT // 4
    return -(-size // step) * step
