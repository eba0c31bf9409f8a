"""What is tried when a pass fails: two halves where memory ran out, and then each part alone, so that one fails by itself."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from spinf_core.compiler.jobs import Part
from spinf_core.engine.memory import DeviceMemory
from spinf_core.engine.reading import Reading, Values
from spinf_core.engine.scorer import Scorer

_log = logging.getLogger(__name__)

_SIGNS = ("out of memory", "ALLOC_FAILED")
"""In what the libraries beside torch's allocator say of it: the driver, cuBLAS, Triton."""


@attrs.frozen
class OutOfMemory(Exception):
    """A part did not fit the device's memory, not even by halves.

    Attributes:
        held: bytes that the device did not get back, where they are too many to go on.
    """

    held: int = 0


Outcome = Values | Exception
"""What a part read, or why it could not be run."""


class Recovery:
    """Runs passes, and runs what fails again; used by the thread that owns the device.

    Args:
        scorer: runs passes.
        memory: of its device.
    """

    def __init__(self, scorer: Scorer, memory: DeviceMemory) -> None:
        self._scorer = scorer
        self._memory = memory

    def launch(self, parts: Sequence[Part]) -> Reading | list[Outcome]:
        """Begin a pass; where that fails, what became of each part once it was tried again.

        Raises:
            Exception: the device's own, where it does not work any more.
        """
        found = self._attempt(parts)
        return self._recover(parts, found, halve=True) if isinstance(found, Exception) else found

    def values(self, outcome: Reading | list[Outcome], parts: int) -> list[Outcome]:
        """What a pass read; waits for it.

        Raises:
            Exception: the device's own, where it does not work any more.
        """
        if not isinstance(outcome, Reading):
            return outcome
        try:
            return [*outcome.values()]
        except Exception as error:
            self._memory.check_device()
            return [error] * parts

    def _attempt(self, parts: Sequence[Part]) -> Reading | Exception:
        try:
            return self._scorer.launch(parts)
        except Exception as error:
            _release(error)
            return error

    def _recover(self, parts: Sequence[Part], failure: Exception, halve: bool) -> list[Outcome]:
        self._memory.check_device()
        full = _of_memory(failure)
        if full:
            self._memory.free()
        if full and halve:
            _log.warning("a pass of %d rows ran out of memory; running it in two halves", sum(part.rows for part in parts))
            return self._in_halves(parts)
        if len(parts) > 1:
            _log.error("a pass of %d parts failed; running each part alone", len(parts), exc_info=failure)
            return [outcome for part in parts for outcome in self._run([part], halve)]
        return [OutOfMemory(self._memory.held()) if full else failure]

    def _run(self, parts: Sequence[Part], halve: bool) -> list[Outcome]:
        found = self._attempt(parts)
        if isinstance(found, Exception):
            return self._recover(parts, found, halve)
        return self.values(found, len(parts))

    def _in_halves(self, parts: Sequence[Part]) -> list[Outcome]:
        if len(parts) > 1:
            middle = len(parts) // 2
            return [*self._run(parts[:middle], halve=False), *self._run(parts[middle:], halve=False)]
        (part,) = parts
        values = np.full(len(part.job.pair_node), np.nan)
        for half in part.halves():
            (found,) = self._run([half], halve=False)
            if isinstance(found, Exception):
                return [found]
            values[half.pairs] = found
        return [values[part.pairs]]


def _release(error: BaseException | None) -> None:
    """Let go of the tensors of a pass, which the frames of what failed hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
