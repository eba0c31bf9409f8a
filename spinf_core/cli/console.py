"""What a command tells the person at the console: on standard error, so that standard output holds the result alone."""

from __future__ import annotations

import sys


def note(line: str) -> None:
    """Tell one line."""
    print(line, file=sys.stderr, flush=True)
