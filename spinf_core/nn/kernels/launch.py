"""Where kernels are launched; or, in a context, compiled side by side before a layer first needs them.

Triton compiles a kernel when it is first launched with arguments of a kind, and the host waits. All but a few hundredths of a
second of a compilation is outside Python, so threads run as many at once as there are cores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import triton

_log = logging.getLogger(__name__)
_ahead: ContextVar[_Threads | None] = ContextVar("ahead", default=None)


def launcher(kernel: Any) -> Any:
    """What launches a kernel: `launcher(kernel)[grid](…)`, which is `kernel[grid](…)` but for `compiling_ahead`."""
    threads = _ahead.get()
    return kernel if threads is None else _Unlaunched(kernel, threads)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Kernels of this thread are compiled for the arguments they are given meanwhile, and not launched.

    Whatever they would have written holds what its memory held before. Leaving waits for the compilations. One that fails is
    logged, and tried again when the kernel is launched.
    """
    threads = _Threads(thread_name_prefix="spinf-compile")
    try:
        with threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            token = _ahead.set(threads)
            try:
                yield
            finally:
                _ahead.reset(token)
    finally:
        if threads.failed:
            for kernel in threads.kernels:  # some versions of Triton raise at every launch what failed here
                kernel.device_caches.clear()


class _Unlaunched:
    """Stands for a kernel that is compiled and not launched."""

    def __init__(self, kernel: Any, threads: _Threads) -> None:
        self._kernel = kernel
        threads.kernels.add(kernel)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._kernel.warmup, grid=grid)


class _Threads(ThreadPoolExecutor):
    """Says which compilations failed, which Triton does not.

    Attributes:
        kernels: whose compilations were asked for. failed: whether one was not compiled.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kernels: set[Any] = set()
        self.failed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self.failed = True
            _log.warning(
                "a kernel was not compiled ahead, and will be when it is launched: %s: %s", type(error).__name__, error
            )
