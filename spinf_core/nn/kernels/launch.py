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
_ahead = ContextVar("ahead", default=False)


def launcher(kernel: Any) -> Any:
    """What launches a kernel: `launcher(kernel)[grid](…)`, which is `kernel[grid](…)` but for `compiling_ahead`."""
    return _Unlaunched(kernel) if _ahead.get() else kernel


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Kernels of this thread are compiled for the arguments they are given meanwhile, and not launched.

    Whatever they would have written holds what its memory held before. Leaving waits for the compilations. One that fails is
    logged, and tried again when the kernel is launched.
    """
    with _Threads(thread_name_prefix="spinf-compile") as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
        token = _ahead.set(True)
        try:
            yield
        finally:
            _ahead.reset(token)


class _Unlaunched:
    """Stands for a kernel that is compiled and not launched."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._kernel.warmup, grid=grid)


class _Threads(ThreadPoolExecutor):
    """Says which compilations failed, which Triton does not."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(_ended)
        return future


def _ended(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("a kernel was not compiled ahead, and will be when it is launched: %s: %s", type(error).__name__, error)
