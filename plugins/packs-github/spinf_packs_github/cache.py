"""What was fetched before: commits as folders, and what tags pointed to."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from spinf_core.checkpoints.cache import write_atomically
from spinf_packs_github.location import Location


def cache_root() -> Path:
    """`$SPINF_PACKS_CACHE`, or `spinf/packs` in the XDG cache folder."""
    if named := os.environ.get("SPINF_PACKS_CACHE"):
        return Path(named).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "spinf" / "packs"


class RepositoryCache:
    """The cache of one repository. A folder with a commit's name is whole: it was moved there when it was.

    Args:
        api_url: whose repository it is. location: of it.
    """

    def __init__(self, api_url: str, location: Location) -> None:
        host = urlsplit(api_url).netloc.replace(":", "_") or "github"
        self._folder = cache_root() / "github" / host.lower() / location.owner.lower() / location.repo.lower()

    def commit(self, commit: str) -> Path | None:
        """The folder of a commit that was fetched."""
        folder = self._folder / commit
        return folder if folder.is_dir() else None

    def add(self, commit: str, fill: Callable[[Path, Path], None]) -> Path:
        """Fill a new folder and give it the commit's name once it is whole.

        Args:
            commit: whose files they are.
            fill: called with an empty folder for the files and one for anything in between; what it raises leaves no trace.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".partial-") as between:
            files = Path(between) / "files"
            files.mkdir()
            fill(files, Path(between))
            target = self._folder / commit
            if target.exists():
                target.rename(Path(between) / "old")
            try:
                files.rename(target)
            except OSError:
                if not target.is_dir():  # somebody else was faster
                    raise
            shutil.rmtree(Path(between) / "old", ignore_errors=True)
        return target

    def tag(self, name: str) -> str | None:
        """The commit that a tag pointed to when it was looked up."""
        found = self._tags().get(name)
        return found if isinstance(found, str) else None

    def remember(self, name: str, commit: str) -> None:
        """Remember what a tag points to."""
        write_atomically(self._folder / "tags.json", json.dumps(self._tags() | {name: commit}, indent=1))

    def _tags(self) -> dict[str, object]:
        try:
            found = json.loads((self._folder / "tags.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
