"""Spans of files read straight into a device's memory: by several threads, and to a GPU through pinned buffers.

On the way to a GPU two buffers take turns: while one is copied the other is filled, so that a load takes as long as the
slower of disk and bus, and the host never holds more than the buffers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

BUFFER = 64 * 2**20
SLICE = 8 * 2**20
"""What one thread reads at a time; shorter spans are read without handing them over."""
THREADS = 8


class SpanReader:
    """Reads spans of files as tensors of bytes on a device.

    Args:
        device: where the bytes go.
        staged: whether they go through the buffers; None: on a GPU, where memory cannot be read into directly.
        buffer: bytes of each of the two.
    """

    def __init__(self, device: torch.device, staged: bool | None = None, buffer: int = BUFFER) -> None:
        self._device = device
        self._staged = device.type == "cuda" if staged is None else staged
        self._size = buffer
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="spinf-read")
        self._buffers: list[_Buffer] = []
        self._turn = 0

    def read(self, path: Path, start: int, size: int) -> Tensor:
        """[size] uint8 on the device: the bytes of a file from `start` on.

        On a GPU the copy may still run when this returns; work on the current stream comes after it.

        Raises:
            OSError: the file cannot be read.
            EOFError: it ends before the span does.
        """
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        if not self._staged:
            self._fill(path, start, target)
            return target
        for first in range(0, size, self._size):
            part = target[first : first + self._size]
            buffer = self._next_buffer()
            buffer.wait()
            self._fill(path, start + first, buffer.memory[: len(part)])
            buffer.copy_to(part)
        return target

    def close(self) -> None:
        """End the threads and give the buffers back; a later read makes new ones."""
        self._threads.shutdown()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="spinf-read")
        self._buffers = []

    def _next_buffer(self) -> _Buffer:
        if not self._buffers:
            self._buffers = [_Buffer(self._size, self._device) for _ in range(2)]
        self._turn += 1
        return self._buffers[self._turn % 2]

    def _fill(self, path: Path, start: int, memory: Tensor) -> None:
        """Read into host memory [n] uint8."""
        view = memory.numpy().data
        firsts = range(0, len(view), SLICE)
        if len(firsts) < 2:
            _read(path, start, view)
            return
        done = self._threads.map(lambda first: _read(path, start + first, view[first : first + SLICE]), firsts)
        for _ in done:  # raises what a thread raised
            pass


class _Buffer:
    """Host memory whose copy to the device runs beside the host's work."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._device = device

    def wait(self) -> None:
        """Until the last copy has been made."""
        if self._copied is not None:
            self._copied.synchronize()

    def copy_to(self, target: Tensor) -> None:
        """Begin to copy as many bytes as the target [n] has."""
        target.copy_(self.memory[: len(target)], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device))


def _read(path: Path, start: int, view: memoryview) -> None:
    """Fill a view from a file; each call opens the file for itself, so that threads share no position."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise EOFError(f"{path} ends at {file.tell():,}")
            view = view[count:]
