"""Templates: literal text, placeholders, and the one slot where the answer goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import attrs

from spinf_core.errors import Rejected

Slot = Literal["scored", "text", "number", "currency"]

MAX_PLACEHOLDERS = 5

_SLOTS: dict[str, Slot] = {"?": "scored", "*": "text", "n": "number", "$": "currency"}
_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z0-9_]+|[?*$])\}|[{}]")


def escape(text: str) -> str:
    """The template text that stands for exactly `text`: its braces doubled."""
    return text.replace("{", "{{").replace("}", "}}")


@attrs.frozen
class Template:
    """A parsed template.

    Attributes:
        pieces: literal, placeholder name, literal, …, literal: what comes before the slot. The length is odd.
        slot: what kind of answer goes into the slot.
        stop: the text after a `{*}` slot, at which the answer ends; empty for none.
    """

    pieces: tuple[str, ...]
    slot: Slot
    stop: str = ""

    @classmethod
    def parse(cls, text: str, param: str = "template") -> Template:
        """Parse a template.

        Args:
            text: literal text with `{name}` placeholders, `{{` and `}}` for braces, and one of `{?}` `{*}` `{n}` `{$}`.
            param: the field that errors name.

        Raises:
            Rejected: `invalid_template`. Positions in its messages are character offsets from 0.
        """
        if text.endswith("{?}") and text.count("{") == 1 and text.count("}") == 1:
            return cls((text[:-3],), "scored")
        return _scan(text, param)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The distinct placeholder names, in order of appearance."""
        return tuple(dict.fromkeys(self.pieces[1::2]))

    def fill(self, values: Mapping[str, str], param: str | None = None) -> str:
        """The text before the slot, each placeholder replaced once: braces in a value stay as they are.

        Args:
            values: placeholder name -> value; names that the template lacks are not looked at.
            param: the field that holds `values`, which errors name.

        Raises:
            Rejected: `missing_value` where a placeholder has no value.
        """
        if len(self.pieces) == 1:
            return self.pieces[0]
        filled = list(self.pieces)
        for index in range(1, len(filled), 2):
            name = filled[index]
            if name not in values:
                raise Rejected(
                    "missing_value",
                    f"the template's placeholder {{{name}}} has no value",
                    f"{param}.{name}" if param else None,
                )
            filled[index] = values[name]
        return "".join(filled)


def _scan(text: str, param: str) -> Template:
    pieces: list[str] = []
    slot: Slot | None = None
    literal = ""
    position = 0
    for match in _TOKEN.finditer(text):
        literal += text[position : match.start()]
        position = match.end()
        token, name = match[0], match[1]
        if token in ("{{", "}}"):
            literal += token[0]
        elif name is None:
            raise _invalid(
                f"there is a lone {token} at position {match.start()}; write {token * 2} for a brace,"
                " or {name} for a placeholder (letters, digits and _)",
                param,
            )
        elif slot is not None:
            what = "a second slot" if name in _SLOTS else "a placeholder after the slot"
            raise _invalid(f"there is {what}, {token}, at position {match.start()}", param)
        else:
            pieces.append(literal)
            literal = ""
            if name in _SLOTS:
                slot = _SLOTS[name]
            else:
                pieces.append(name)
    stop = literal + text[position:]
    if slot is None:
        raise _invalid("there is no slot; end the template with {?}, or write {*}, {n} or {$} for an extraction", param)
    if slot != "text" and stop:
        raise _invalid("text follows the slot; only {*} may be followed by the text at which the answer ends", param)
    if "\n" in stop or "\r" in stop:
        raise _invalid("the text after {*} holds a newline; an answer ends at a newline anyway", param)
    template = Template(tuple(pieces), slot, stop)
    if len(template.placeholders) > MAX_PLACEHOLDERS:
        raise _invalid(f"there are {len(template.placeholders)} placeholders; at most {MAX_PLACEHOLDERS} may be", param)
    return template


def _invalid(problem: str, param: str) -> Rejected:
    return Rejected("invalid_template", f"{param}: {problem}", param)
