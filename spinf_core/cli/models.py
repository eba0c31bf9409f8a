"""`spinf models`: the models that can be served, and which one runs when none is named."""

from __future__ import annotations

import argparse
import json
from typing import Any

from spinf_core.columns import aligned
from spinf_core.default_model import default_model, gpu_present
from spinf_core.errors import SetupError
from spinf_core.registry import Plugins


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List models."""
    listing = describe(arguments.compose(), gpu_present())
    print(json.dumps(listing, indent=2) if arguments.json else _text(listing))
    return 0


def describe(plugins: Plugins, gpu: bool) -> dict[str, Any]:
    """The listing as data.

    `models`: id, name, aliases, family, status, `stack_installed`, source, `cached` (whether the checkpoint is on this
    machine), distribution, version; `default`: {id, reason}, with id null where no default is installed.
    """
    from spinf_core.checkpoints import is_cached

    families = {item.record.family for item in plugins.stacks}
    try:
        model, reason = default_model(plugins, gpu)
        default: dict[str, str | None] = {"id": model, "reason": reason}
    except SetupError as error:
        default = {"id": None, "reason": str(error)}
    return {
        "models": [
            {
                "id": item.record.id,
                "name": item.record.name,
                "aliases": list(item.record.aliases),
                "family": item.record.family,
                "status": item.record.status,
                "stack_installed": item.record.family in families,
                "source": str(item.record.source),
                "cached": item.record.available and is_cached(item.record),
                "distribution": item.distribution,
                "version": item.version,
            }
            for item in plugins.models
        ],
        "default": default,
    }


def _text(listing: dict[str, Any]) -> str:
    header = ("model", "aliases", "family", "status", "source")
    lines = [*aligned([header, *(_row(model) for model in listing["models"])])]
    default = listing["default"]
    lines += ["", f"default: {default['id'] or 'none'}, {default['reason']}"]
    return "\n".join(lines)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    status = model["status"].replace("_", " ")
    if not model["stack_installed"]:
        status += ", its stack is not installed"
    elif model["cached"]:
        status += ", in the cache"
    return (model["id"], ", ".join(model["aliases"]), model["family"], status, model["source"])
