"""Scale tables: the static input scale of every linear of one revision of a checkpoint, with where they come from.

A table is a JSON file: {"revision": text, "provenance": object, "scales": {module: number}}. `spinf calibrate` writes it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spinf_core.errors import SetupError
from spinf_core.quant.reading import checked_scale
from spinf_quant_fp8s.products import LARGEST

HEADROOM = 2.0


def static_scale(largest: float, headroom: float = HEADROOM) -> float:
    """2^ceil(log2(headroom · largest / 448)): the power of two that leaves room above the largest value seen.

    Zeros alone say nothing of what may come: then it is 1.
    """
    if largest == 0:
        return 1.0
    return 2.0 ** math.ceil(math.log2(max(headroom * largest, 2.0**-100) / LARGEST))


@attrs.frozen(kw_only=True)
class ScaleTable:
    """Input scales by module.

    Attributes:
        revision: of the checkpoint that they were found on, as `spinf_core.checkpoints.Checkpoint` has it.
        provenance: how they were found, for people; {} where nobody wrote it down.
        scales: by the module's name, without `.weight`.
        path: where it was read from.
    """

    revision: str
    provenance: Mapping[str, Any]
    scales: Mapping[str, float]
    path: str = ""

    @classmethod
    def read(cls, path: Path) -> ScaleTable:
        """Read a table.

        Raises:
            SetupError: the file cannot be read or is no table, or a scale is not a positive number in float32.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            scales = {str(name): float(scale) for name, scale in content["scales"].items()}
            provenance = dict(content.get("provenance") or {})
            table = cls(revision=str(content["revision"]), provenance=provenance, scales=scales, path=str(path))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise SetupError(
                f"scale table {path} is not one: {error!r}; it is a JSON object with revision and "
                "scales, a number for each module; `spinf calibrate` writes one"
            ) from error
        for name, scale in table.scales.items():
            checked_scale(f"of {name} in scale table {path}", scale, "mend the table")
        return table

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        content = {"revision": self.revision, "provenance": dict(self.provenance), "scales": dict(sorted(self.scales.items()))}
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that move with any scale."""
        return hashlib.sha256(json.dumps(dict(sorted(self.scales.items()))).encode()).hexdigest()[:16]

    def check_revision(self, revision: str) -> None:
        """Refuse the table for another checkpoint.

        Args:
            revision: of the checkpoint; empty where it is not known, and then nothing is refused.

        Raises:
            SetupError: naming the table and both revisions.
        """
        if revision and revision != self.revision:
            made_on = f" ({self.provenance['model']})" if self.provenance.get("model") else ""
            raise SetupError(
                f"scale table {self.path} was made for revision {self.revision}{made_on}, and this checkpoint is revision "
                f"{revision}; make its own with `spinf calibrate`"
            )

    def input_scale(self, name: str) -> float:
        """A module's.

        Raises:
            SetupError: it has none.
        """
        if name not in self.scales:
            raise SetupError(f"scale table {self.path} has no scale for {name}; make it anew with `spinf calibrate`")
        return self.scales[name]
