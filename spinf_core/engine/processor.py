"""How many threads suit this machine's processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int | None:
    """Threads for a CPU: the physical cores that this process may use, fewer where a container may use less time than that.

    None where the environment already says (`OMP_NUM_THREADS`, `MKL_NUM_THREADS`) or nothing is known: torch's own choice.
    """
    if os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return None
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = {_core(number) for number in os.sched_getaffinity(0)}
    return max(1, min([len(cores), *_quota()]))


def _core(number: int) -> str:
    """A name that the logical processors of one core share."""
    try:
        return (_CPUS / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _quota() -> Iterator[int]:
    """How many processors' time the control group may use, rounded up; nothing where there is no limit."""
    try:
        allowed, period = _QUOTA.read_text().split()
        yield -(-int(allowed) // int(period))
    except (OSError, ValueError):
        return
