"""Flags made from the settings: names, help and defaults are written once, in `spinf_core.options`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spinf_core.cli.console import note
from spinf_core.options import Option, options
from spinf_core.registry import Plugins
from spinf_core.settings import Settings, load_settings, settings_file

_TITLES = {
    "engine": "engine",
    "server": "server",
    "features": "features",
    "limits": "limits of a request",
}


def add_flags(parser: argparse.ArgumentParser, tables: Iterable[str]) -> None:
    """Add the flags of these settings tables, and `--config`. Flags that are not given leave no trace."""
    parser.add_argument("--config", metavar="FILE", help="settings file, TOML (SPINF_CONFIG)")
    for table in tables:
        group = parser.add_argument_group(_TITLES[table])
        for option in options(table):
            _add(group, option)


def given_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings given by flags, by `table.name`, as `spinf_core.settings.load_settings` takes them."""
    return {name: value for name, value in vars(arguments).items() if "." in name}


def read_settings(arguments: argparse.Namespace, plugins: Plugins, model: str | None = None) -> Settings:
    """The settings of a command: its flags above the environment and the file. Variables that nothing reads are told.

    Args:
        arguments: parsed by a parser with `add_flags`.
        plugins: the composition.
        model: named in another way than by a flag of the settings.

    Raises:
        SetupError: naming what is wrong where.
    """
    flags = given_flags(arguments)
    if model is not None:
        flags["engine.model"] = model
    settings = load_settings(flags, file=settings_file(arguments.config, os.environ), plugins=plugins)
    for warning in settings.warnings:
        note(f"warning: {warning}")
    return settings


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    common: dict[str, Any] = {"dest": option.key, "default": argparse.SUPPRESS}
    for flag, sets in option.flags.items():
        if sets is None:
            many: dict[str, Any] = {"nargs": "+", "action": "extend"} if option.metadata.get("many") else {}
            group.add_argument(flag, metavar=_metavar(option), help=_help(option), **common, **many)
        else:
            help_ = option.help if sets else f"do not {option.help}"
            group.add_argument(flag, action="store_const", const=sets, help=f"{help_} ({option.env})", **common)


def _help(option: Option) -> str:
    default = option.default
    if isinstance(default, tuple):
        default = ",".join(default)
    shown = f"default {default}; " if default not in (None, "", ()) and not hasattr(default, "items") else ""
    return f"{option.help} ({shown}{option.env})".replace("%", "%%")


def _metavar(option: Option) -> str:
    numeric = option.hint in (int, int | None)
    path = option.hint in (Path, Path | None)
    return "N" if numeric else "FOLDER" if path else option.name.rpartition("_")[2].upper()
