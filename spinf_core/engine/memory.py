"""The memory of a device: given back after a failure, and watched, for a failure may leave some of it taken for good."""

from __future__ import annotations

import gc

import torch

from spinf_core.nn.graphs import forget_recorded

LEAST_MARGIN = 1 << 30
MARGIN = 1 / 16  # of the device's memory: libraries take some for themselves when they first need it


class DeviceMemory:
    """Compares what is held with what was held when this was made. On a CPU nothing is compared.

    Args:
        device: of the model, loaded and idle.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._before = 0
        if self._cuda:
            self._before = torch.cuda.memory_allocated(device)
            total: int = torch.cuda.get_device_properties(device).total_memory
            self._margin = max(LEAST_MARGIN, int(total * MARGIN))

    def check_device(self) -> None:
        """Wait for the device.

        Raises:
            Exception: what the driver says where the device does not work any more: such a fault stays with the process.
        """
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def free(self) -> None:
        """Give back whatever is not in use: garbage, the allocator's reserve, recorded passes."""
        gc.collect()
        if self._cuda:
            forget_recorded()
            torch.cuda.empty_cache()

    def held(self) -> int:
        """Bytes held beyond what was at the beginning and may be since, 0 where it is no more; right after `free`."""
        if not self._cuda:
            return 0
        more = torch.cuda.memory_allocated(self._device) - self._before
        return more if more > self._margin else 0
