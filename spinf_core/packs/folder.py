"""The folder source: a repository of packs on this machine."""

from __future__ import annotations

from pathlib import Path

from spinf_core.errors import SetupError
from spinf_core.packs.repository import Repository, read_repository
from spinf_core.packs.sources import SourceContext


class FolderSource:
    """`--packs FOLDER`, or `folder:FOLDER`."""

    def packs(self, location: str) -> Repository:
        """See `Source`."""
        folder = Path(location).expanduser()
        if not folder.is_dir():
            raise SetupError(f"packs {location}: there is no such folder; a source is a folder or SCHEME:LOCATION")
        return read_repository(folder, origin=location)


def build(context: SourceContext) -> FolderSource:
    """The source's factory."""
    return FolderSource()
