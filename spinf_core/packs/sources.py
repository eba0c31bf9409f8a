"""What a pack source is.

A source's factory takes a `SourceContext` and returns an object with `packs(location)`, which brings the repository at that
location. Most sources fetch a folder and have `repository.read_repository` read it:

    class Bucket:
        def packs(self, location):
            folder = download(location)
            return read_repository(folder, origin=f"bucket:{location}")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from spinf_core.packs.repository import Repository


@attrs.frozen(kw_only=True)
class SourceContext:
    """What a source's factory is given.

    Attributes:
        settings: an instance of the record's settings class, or None.
        refresh: whether to fetch again what would be taken from a cache.
        note: takes a line for the person who runs spinf.
    """

    settings: object | None = None
    refresh: bool = False
    note: Callable[[str], None] = lambda line: None


class Source(Protocol):
    """Brings repositories of packs."""

    def packs(self, location: str) -> Repository:
        """The repository at a location: what follows the scheme and its colon.

        Raises:
            SetupError: it cannot be had; one line that says why and what to do.
            PackError: it holds what is no pack, with every problem.
        """
        ...
