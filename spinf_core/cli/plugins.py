"""`spinf plugins`: what is installed, what each plugin registers, and which failed."""

from __future__ import annotations

import argparse
import json
from typing import Any

from spinf_core.columns import aligned
from spinf_core.manifests import Manifest
from spinf_core.records import ModelStack, PackSource
from spinf_core.registry import Plugins

_KINDS = {
    "stacks": "stack",
    "models": "model",
    "schemes": "scheme",
    "embedders": "embedder",
    "pack_sources": "pack source",
    "frontends": "front end",
    "commands": "command",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List plugins. Failed ones are listed too and change nothing about the exit status, except in strict mode."""
    listing = describe(arguments.compose())
    print(json.dumps(listing, indent=2) if arguments.json else _text(listing))
    return 0


def describe(plugins: Plugins) -> dict[str, Any]:
    """The listing as data.

    `plugins`: name, distribution, version, and `registers`, a list of {kind, name, summary}; `failures`: plugin,
    distribution, version, cause, how_to_disable; `disabled`: names of installed plugins that were left out.
    """
    registered: dict[str, list[dict[str, str]]] = {}
    sources = {plugin.name: (plugin.distribution, plugin.version) for plugin in plugins.loaded}
    for field, kind in _KINDS.items():
        for item in getattr(plugins, field):
            sources.setdefault(item.plugin, (item.distribution, item.version))
            registered.setdefault(item.plugin, []).append({"kind": kind, **_name(item.record)})
    return {
        "plugins": [
            {
                "name": name,
                "distribution": distribution,
                "version": version,
                "registers": registered.get(name, []),
            }
            for name, (distribution, version) in sources.items()
        ],
        "failures": [
            {
                "plugin": failure.plugin,
                "distribution": failure.distribution,
                "version": failure.version,
                "cause": failure.cause,
                "how_to_disable": failure.how_to_disable,
            }
            for failure in plugins.failures
        ],
        "disabled": list(plugins.disabled),
    }


def _name(record: Any) -> dict[str, str]:
    if isinstance(record, Manifest):
        return {"name": record.id, "summary": record.description}
    if isinstance(record, PackSource):
        return {"name": f"{record.scheme}:", "summary": record.summary}
    if isinstance(record, ModelStack):
        return {"name": record.family, "summary": record.summary}
    return {"name": record.name, "summary": record.summary}


def _text(listing: dict[str, Any]) -> str:
    lines: list[str] = []
    for plugin in listing["plugins"]:
        lines.append(f"{plugin['name']}  ({plugin['distribution']} {plugin['version']})")
        rows = [(f"{item['kind']} {item['name']}", item["summary"]) for item in plugin["registers"]]
        lines += [f"  {line}" for line in aligned(rows)]
    for failure in listing["failures"]:
        lines.append("")
        lines.append(f"FAILED {failure['plugin']}  ({failure['distribution']} {failure['version']})".replace(" )", ")"))
        lines.append(f"  {failure['cause']}")
        lines.append(f"  to disable: {failure['how_to_disable']}")
    if listing["disabled"]:
        lines += ["", "left out: " + ", ".join(listing["disabled"])]
    return "\n".join(lines)
