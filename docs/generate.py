"""Writes the tables of docs/configuration.md from the settings classes: `python docs/generate.py`.

Each table stands between `<!-- settings: TABLE -->` and `<!-- end -->`; the prose around them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from spinf_core.options import Option, options

PAGE = Path(__file__).parent / "configuration.md"
_TABLE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with its tables written anew."""
    return _TABLE.sub(lambda found: found[1] + table(found[2]) + found[3], page)


def table(name: str) -> str:
    """The settings of one table of the file."""
    head = "| key | type | default | flag | environment | |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(row, options(name)))


def row(option: Option) -> str:
    """One setting."""
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    cells = (f"`{option.name}`", kind(option.hint), default(option.default), flags, f"`{option.env}`", option.help)
    return "| " + " | ".join(cells) + " |\n"


def kind(hint: Any) -> str:
    """A type as one writes it in TOML."""
    members = [member for member in get_args(hint) if member is not type(None)]
    origin = get_origin(hint)
    if origin is Literal:
        return "text"
    if origin is tuple:
        return "list of texts"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "table of texts"
    if type(None) in get_args(hint):
        return kind(members[0])
    return {bool: "true or false", int: "whole number", str: "text", Path: "path"}[hint]


def default(value: Any) -> str:
    """A default as one writes it in TOML; nothing where spinf chooses."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    if isinstance(value, Mapping):
        return "`{}`"
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
