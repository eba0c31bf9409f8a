"""Collects the problems of a file: each check adds what it finds and goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spinf_core.protocol.text import described, has_lone_surrogate, quoted
from spinf_core.strict import nearest


def shown(value: object) -> str:
    """A JSON value in a few words."""
    return quoted(value) if isinstance(value, str) else described(value)


class Checks:
    """The problems so far, in the order of the file.

    Attributes:
        problems: one line each, beginning with the field.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def add(self, where: str, problem: str) -> None:
        """Note a problem of a field."""
        self.problems.append(f"{where} {problem}" if problem[0].islower() else f"{where}: {problem}")

    def known(self, value: Mapping[str, Any], names: Sequence[str], where: str) -> None:
        """Note members that look like a typing error of a known one. Others are the author's own notes."""
        for name in value:
            if name not in names and (near := nearest(str(name), names, cutoff=0.8)):
                self.add(_join(where, name), f"is not a field here; did you mean {near}?")

    def text(
        self, value: Mapping[str, Any], name: str, where: str, *, required: bool = True, empty: bool = False
    ) -> str | None:
        """The text of a member; None where it is missing or something else."""
        found = value.get(name)
        path = _join(where, name)
        if found is None:
            if required:
                self.add(path, "is missing")
            return None
        if not isinstance(found, str):
            self.add(path, f"must be a text, not {shown(found)}")
        elif has_lone_surrogate(found):
            self.add(path, "holds half a character (a lone surrogate)")
        elif not found and not empty:
            self.add(path, "is empty")
        else:
            return found
        return None

    def texts(self, value: Mapping[str, Any], name: str, where: str, *, required: bool = True) -> list[str] | None:
        """The texts of a list; None where it is missing or something else."""
        found = value.get(name)
        path = _join(where, name)
        if found is None:
            if required:
                self.add(path, "is missing")
            return None
        if not isinstance(found, list):
            self.add(path, f"must be a list of texts, not {shown(found)}")
            return None
        wrong = [number for number, element in enumerate(found) if not isinstance(element, str) or not element]
        for number in wrong:
            self.add(f"{path}.{number}", f"must be a text, not {shown(found[number])}")
        return None if wrong else found

    def boolean(self, value: Mapping[str, Any], name: str, where: str) -> None:
        """Note a member that is neither left out nor true or false."""
        if value.get(name) is not None and not isinstance(value[name], bool):
            self.add(_join(where, name), f"must be true or false, not {shown(value[name])}")

    @staticmethod
    def is_number(value: object) -> bool:
        """Whether a value is a finite number."""
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf

    def number(
        self, value: Mapping[str, Any], name: str, where: str, *, least: float = -math.inf, most: float = math.inf
    ) -> None:
        """Note a member that is no finite number within the bounds."""
        found = value.get(name)
        path = _join(where, name)
        if found is None:
            self.add(path, "is missing")
        elif not self.is_number(found):
            self.add(path, f"must be a number, not {shown(found)}")
        elif not least <= found <= most:
            self.add(path, f"must be from {least:g} to {most:g}, not {shown(found)}")

    def numbers(self, value: Mapping[str, Any], name: str, where: str, *, count: int | None = None) -> list[float] | None:
        """The numbers of a list; None where it is missing or something else."""
        found = value.get(name)
        path = _join(where, name)
        how_many = "numbers" if count is None else f"{count} numbers"
        if found is None:
            self.add(path, "is missing")
        elif not isinstance(found, list) or not all(map(self.is_number, found)) or (count is not None and len(found) != count):
            self.add(path, f"must be a list of {how_many}, not {shown(found)}")
        else:
            return found
        return None

    def objects(self, value: object, where: str, *, least: int = 0) -> dict[str, Mapping[str, Any]]:
        """The members of an object that are objects themselves."""
        if not isinstance(value, Mapping) or len(value) < least:
            self.add(where, f"must be an object{' with a member at least' if least else ''}, not {shown(value)}")
            return {}
        for name, member in value.items():
            if not isinstance(member, Mapping):
                self.add(f"{where}.{name}", f"must be an object, not {shown(member)}")
        return {name: member for name, member in value.items() if isinstance(member, Mapping)}


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
