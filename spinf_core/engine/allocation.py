"""Memory that a pass on a CPU has freed stays with the process.

A pass takes and frees hundreds of arrays of some megabytes. glibc would give each back to the system and have the next one
filled with zeros page by page, which takes a fifth of the time of a pass on two threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform

KEPT = 512 * 2**20
"""Bytes that are kept at most beyond what is in use."""

# Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Have the C library keep up to `KEPT` bytes of freed memory for the next pass; for the whole process, from now on.

    Returns:
        Whether this C library could be told: glibc can.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Arenas of other threads are of 64 MB and given back whole; the passes run in a thread of their own.
        options = ((_M_TRIM_THRESHOLD, KEPT), (_M_MMAP_THRESHOLD, KEPT), (_M_ARENA_MAX, 1))
        return bool(sum(mallopt(name, value) for name, value in options) == len(options))
    return False
