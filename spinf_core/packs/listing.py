"""What is told about packs: the entries of `GET /v1/packs`."""

from __future__ import annotations

from typing import Any

from spinf_core.packs.catalog import Catalog, Enabled
from spinf_core.packs.file import Pack


def listing(catalog: Catalog) -> dict[str, Any]:
    """The body of `GET /v1/packs`: one entry per enabled pack, about its latest version."""
    return {"packs": [entry(catalog.latest(id_), catalog.enabled[id_]) for id_ in sorted(catalog.enabled)]}


def entry(latest: Enabled, versions: tuple[Enabled, ...]) -> dict[str, Any]:
    """One pack of the listing.

    Args:
        latest: what is described. versions: all that are enabled.
    """
    pack = latest.pack
    return {
        "id": pack.id,
        "name": latest.name,
        "status": latest.status,
        "version": pack.version,
        "versions": [each.pack.version for each in versions],
        "description": latest.description,
        "tags": list(latest.tags),
        "media": list(pack.media),
        "model": pack.model,
        "source": latest.source,
        "parameters": [
            {
                "id": name,
                "label": parameter.label,
                "description": parameter.description,
                "required": parameter.required and parameter.default is None,
                "default": parameter.default,
            }
            for name, parameter in pack.parameters.items()
        ],
        "contexts": [{"id": name, "template": template} for name, template in pack.contexts.items()],
        "categories": [
            {"id": name, "label": category.label, "threshold": category.threshold} for name, category in pack.categories.items()
        ],
        "decision": _decision(pack),
        "queries": len(pack.queries),
        "prompts": pack.prompts,
    }


def _decision(pack: Pack) -> dict[str, Any]:
    decision = pack.decision
    assert decision is not None
    return {
        "mode": decision.mode,
        "modes": list(decision.modes),
        "fallback": decision.fallback,
        "max_threshold": None if decision.max is None else decision.max.threshold,
        "critical": list(decision.critical),
    }
