"""Scale tables: the static input scale of every linear of one revision of a checkpoint, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spinf_core.errors import SetupError
from spinf_core.quant.reading import checked_scale


@attrs.frozen(kw_only=True)
class ScaleTable:
    """Input scales by module.

    Attributes:
        revision: of the checkpoint. provenance: how the scales were found, for people.
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
            SetupError: the file cannot be read, or a scale is not a positive number.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            scales = {str(name): float(scale) for name, scale in content["scales"].items()}
            table = cls(
                revision=str(content["revision"]), provenance=content.get("provenance", {}), scales=scales, path=str(path)
            )
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise SetupError(f"scale table {path}: {error!r}; a table is a JSON object with revision and scales") from error
        for name, scale in table.scales.items():
            checked_scale(f"{path}: {name}", scale)
        return table

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        content = {"revision": self.revision, "provenance": dict(self.provenance), "scales": dict(sorted(self.scales.items()))}
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def input_scale(self, name: str) -> float:
        """A module's.

        Raises:
            SetupError: it has none.
        """
        if name not in self.scales:
            raise SetupError(f"scale table {self.path} has no scale for {name}; it was made for another checkpoint")
        return self.scales[name]
