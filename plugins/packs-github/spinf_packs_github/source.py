"""The source `github:`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from spinf_core import SetupError
from spinf_core.packs.repository import Repository, read_repository
from spinf_core.packs.sources import SourceContext
from spinf_packs_github.api import GitHub, Resolved
from spinf_packs_github.archive import BadArchive, unpack
from spinf_packs_github.cache import RepositoryCache
from spinf_packs_github.location import Location
from spinf_packs_github.settings import GitHubSettings


class GitHubSource:
    """Packs of GitHub repositories.

    Args:
        context: of the source. token: for the API, or None.
    """

    def __init__(self, context: SourceContext, token: str | None) -> None:
        self._settings = context.settings if isinstance(context.settings, GitHubSettings) else GitHubSettings()
        self._refresh = context.refresh
        self._note = context.note
        self._token = token

    def packs(self, location: str) -> Repository:
        """See `spinf_core.packs.sources.Source`."""
        place = Location.parse(location)
        cache = RepositoryCache(self._settings.api_url, place)
        with GitHub(place, self._settings.api_url, self._token, self._settings.timeout) as github:
            resolved = self._resolve(github, cache, place)
            folder = None if self._refresh else cache.commit(resolved.commit)
            if folder is None:
                folder = self._fetch(github, cache, place, resolved)
        return read_repository(folder, origin=str(place), under=place.path)

    def _resolve(self, github: GitHub, cache: RepositoryCache, place: Location) -> Resolved:
        name = place.ref.removeprefix("refs/tags/")
        before = cache.tag(name)
        if before is not None and not self._refresh:
            return Resolved("tag", name, before)
        resolved = github.resolve()
        if resolved.kind == "tag":
            if before not in (None, resolved.commit):
                self._note(f"packs {place}: tag {name} has moved from {str(before)[:12]} to {resolved.commit[:12]}")
            # A cache that cannot be written costs a look-up at the next start; fetching will say so where it matters.
            with contextlib.suppress(OSError):
                cache.remember(name, resolved.commit)
        elif resolved.kind == "branch":
            self._note(
                f"warning: packs {place}: branch {resolved.name} is at {resolved.commit} today and may bring other packs "
                f"tomorrow; pin the commit, or a tag, for scores that can be reproduced"
            )
        return resolved

    def _fetch(self, github: GitHub, cache: RepositoryCache, place: Location, resolved: Resolved) -> Path:
        def fill(files: Path, between: Path) -> None:
            archive = between / "archive.tar.gz"
            github.download(resolved.commit, archive)
            unpack(archive, files)

        self._note(f"packs {place}: fetching commit {resolved.commit[:12]}")
        try:
            return cache.add(resolved.commit, fill)
        except BadArchive as error:
            raise SetupError(f"packs {place}: its archive is refused: {error}") from error
        except OSError as error:
            raise SetupError(f"packs {place}: the cache cannot be written: {error}") from error


def build(context: SourceContext) -> GitHubSource:
    """The source's factory."""
    return GitHubSource(context, os.environ.get("GITHUB_TOKEN") or None)
