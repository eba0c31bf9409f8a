"""Model manifests: what a served model is, where its checkpoint comes from, and how it is run by default."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Manifest:
    """A served model. (Fields and TOML reading follow below.)"""

    id: str
