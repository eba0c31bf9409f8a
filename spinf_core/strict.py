"""Strict reading of attrs classes from TOML tables and from the texts of flags and environment variables.

Manifests, settings and the settings of plugins are all read here, so that a typo and a wrong type are told alike: where
it stands, what was expected, and the nearest name that is known. Nothing is converted that the author did not write: in
TOML `"5"` is no number and `1` no boolean.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

T = TypeVar("T", bound=attrs.AttrsInstance)
Fault = Callable[[str, str], Exception]

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


class Mismatch(ValueError):
    """A value is not what its field wants; the message says what that is."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to `name`, compared in any case, or None where none is close.

    `cutoff` is the least similarity, from 0 (the nearest whatever it is) to 1; see `difflib.get_close_matches`.
    """
    folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or a short list where none is close."""
    known = sorted(known)
    if found := nearest(name, known):
        return f"; the nearest known name is {found!r}"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= 15 else ""


def hints(cls: type[attrs.AttrsInstance]) -> dict[str, Any]:
    """The resolved type of every field of an attrs class."""
    resolved = get_type_hints(cls)
    return {field.name: resolved[field.name] for field in attrs.fields(cls) if field.init}


def convert(hint: Any, value: Any) -> Any:
    """A TOML value, or a Python one, as the type `hint`; lists become tuples, texts paths where a path is wanted.

    Raises:
        Mismatch: saying what was expected.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None and type(None) in get_args(hint) else convert(_member(hint), value)
    if origin is Literal:
        if value in get_args(hint) and isinstance(value, str):
            return value
        raise Mismatch(f"expected one of {', '.join(get_args(hint))}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise Mismatch(f"expected a list of {_plural(get_args(hint)[0])}")
        return tuple(convert(get_args(hint)[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise Mismatch("expected a table")
        return {key: convert(get_args(hint)[1], item) for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value).expanduser()
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise Mismatch(f"expected {_describe(hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise Mismatch("expected a finite number")
    return value


def parse(hint: Any, text: str) -> Any:
    """The text of a flag or an environment variable as the type `hint`: lists are `a,b`, tables `name=value,…`.

    Raises:
        Mismatch: saying what was expected.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return parse(_member(hint), text)
    if origin is tuple:
        return tuple(parse(get_args(hint)[0], item) for item in _items(text))
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        pairs = [item.partition("=") for item in _items(text)]
        if not all(name.strip() and equals for name, equals, _ in pairs):
            raise Mismatch("expected name=value,…")
        return {name.strip(): parse(get_args(hint)[1], value.strip()) for name, _, value in pairs}
    if hint is bool:
        if text.strip().lower() in TRUE | FALSE:
            return text.strip().lower() in TRUE
        raise Mismatch("expected 1 or 0 (also true, false, yes, no, on, off)")
    if hint in (int, float):
        try:
            return convert(hint, hint(text))
        except ValueError:
            raise Mismatch(f"expected {_describe(hint)}") from None
    return convert(hint, text)


def build(cls: type[T], table: Mapping[str, Any], fault: Fault) -> T:
    """An attrs class from a TOML table; a field that is itself an attrs class is read from a table of its own.

    Args:
        cls: an attrs class.
        table: its values by field name.
        fault: `(dotted key, sentence) -> exception`, which is raised; the caller knows the file's name.
    """
    wanted = hints(cls)
    for key in table:
        if key not in wanted:
            raise fault(key, f"unknown key{suggestion(key, wanted)}")
    missing = [f.name for f in attrs.fields(cls) if f.init and f.default is attrs.NOTHING and f.name not in table]
    if missing:
        raise fault(missing[0], "is missing")
    values: dict[str, Any] = {}
    for key, value in table.items():
        try:
            member = _member(wanted[key])
            if attrs.has(member) and isinstance(value, Mapping):
                values[key] = build(member, value, _within(fault, key))
            else:
                values[key] = convert(wanted[key], value)
        except Mismatch as error:
            raise fault(key, f"{error}, got {value!r}") from None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise fault("", str(error)) from error


def _within(fault: Fault, key: str) -> Fault:
    return lambda inner, sentence: fault(f"{key}.{inner}" if inner else key, sentence)


def _member(hint: Any) -> Any:
    """`X` of `X | None`; any other type as it is."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(member for member in get_args(hint) if member is not type(None))
    return hint


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_PLURALS = {str: "texts", int: "whole numbers", float: "numbers", Path: "paths"}


def _describe(hint: Any) -> str:
    return "a table" if attrs.has(hint) else _NOUNS.get(hint, str(hint))


def _plural(hint: Any) -> str:
    return _PLURALS.get(hint, f"values, each one of {', '.join(map(str, get_args(hint)))}")
