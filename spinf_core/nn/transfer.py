"""Arrays made on the host, moved to the device in one go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes; kernels are compiled for pointers that are multiples of it


def to_device(arrays: Mapping[str, NDArray[np.int32]], device: torch.device) -> dict[str, Tensor]:
    """Int32 arrays on the device, shapes kept.

    On CUDA all travel in one copy from pinned memory, which neither waits for the work queued before nor lets the host wait: a
    copy from pageable memory would do both.
    """
    if device.type != "cuda":
        return {name: torch.from_numpy(np.ascontiguousarray(array, np.int32)) for name, array in arrays.items()}
    step = ALIGNMENT // 4
    starts, used = {}, 0
    for name, array in arrays.items():
        starts[name] = used
        used += -(-array.size // step) * step
    pinned = torch.empty(max(used, 1), dtype=torch.int32, pin_memory=True)
    host = pinned.numpy()
    for name, array in arrays.items():
        host[starts[name] : starts[name] + array.size] = array.ravel()
    moved = pinned.to(device, non_blocking=True)
    return {name: moved[starts[name] : starts[name] + array.size].view(array.shape) for name, array in arrays.items()}
