"""The settings of the source: `[plugin.github]` and `SPINF_GITHUB_*`."""

from __future__ import annotations

import attrs


@attrs.frozen
class GitHubSettings:
    """Where GitHub is.

    Attributes:
        api_url: base of the REST API.
        timeout: seconds to wait for a connection or for the next bytes.
    """

    api_url: str = "https://api.github.com"
    timeout: float = 20.0
