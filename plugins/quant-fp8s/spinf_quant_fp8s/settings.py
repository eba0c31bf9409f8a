"""Settings of the schemes: `[plugin.fp8s]` and `SPINF_FP8S_*`."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Fp8Settings:
    """Of `fp8s`.

    Attributes:
        scales: path of a scale table, for a checkpoint that holds no scales of its own.
    """

    scales: str = ""
