"""What this distribution brings to spinf."""

from __future__ import annotations

from collections.abc import Iterable

from spinf_core import PackSource, hookimpl
from spinf_packs_github.settings import GitHubSettings


@hookimpl
def spinf_pack_sources() -> Iterable[PackSource]:
    """The source `github:`."""
    yield PackSource(
        name="github",
        summary="Prompt packs in a GitHub repository: github:OWNER/REPO@REF#PATH.",
        scheme="github",
        factory="spinf_packs_github.source:build",
        settings=GitHubSettings,
    )
