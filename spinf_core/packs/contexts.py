"""A content in a pack's context: the text before it and after it, with the parameters filled in."""

from __future__ import annotations

from collections.abc import Mapping

from spinf_core.errors import Rejected
from spinf_core.packs.file import Pack
from spinf_core.packs.validate_request import PLACEHOLDER
from spinf_core.protocol.request import Content, Message, TextPart
from spinf_core.protocol.text import quoted

Surroundings = tuple[str, str]
"""The text before the content and after it."""


def parameter_values(pack: Pack, given: Mapping[str, str], param: str) -> dict[str, str]:
    """A value for each of the pack's parameters: the caller's, else the default, else nothing where it is not required.

    Args:
        pack: whose.
        given: the caller's; other names are not looked at.
        param: path of the values, which errors name.

    Raises:
        Rejected: `missing_value`.
    """
    values = {}
    for name, parameter in pack.parameters.items():
        value = given.get(name, parameter.default)
        if value is None and parameter.required:
            where = f"{param}.{name}"
            raise Rejected("missing_value", f"{where} is missing: pack {pack.id} needs it ({parameter.label})", where)
        values[name] = value or ""
    return values


def surroundings(pack: Pack, context: str, values: Mapping[str, str]) -> Surroundings:
    """The two sides of a context, each placeholder replaced once: braces in a value stay as they are."""

    def fill(text: str) -> str:
        return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)

    before, _, after = pack.contexts[context].partition("{X}")
    return fill(before), fill(after)


def check_names(packs: list[Pack], given: Mapping[str, str], param: str) -> None:
    """Refuse a parameter that no pack of the call has.

    Raises:
        Rejected: `unknown_placeholder`.
    """
    known = {name for pack in packs for name in pack.parameters}
    for name in given:
        if name not in known:
            where = f"{param}.{name}"
            has = f"they have {', '.join(sorted(known))}" if known else "they have none"
            message = f"{where}: no pack of this call has the parameter {quoted(name)}; {has}"
            raise Rejected("unknown_placeholder", message, where)


def wrap(messages: tuple[Message, ...], around: Surroundings) -> tuple[Message, ...]:
    """The messages with a text before the first one's content and after the last one's."""
    before, after = around
    wrapped = list(messages) or [Message(content="")]
    wrapped[0] = Message(role=wrapped[0].role, content=_joined(before, wrapped[0].content, ""))
    wrapped[-1] = Message(role=wrapped[-1].role, content=_joined("", wrapped[-1].content, after))
    return tuple(wrapped)


def _joined(before: str, content: Content, after: str) -> Content:
    if isinstance(content, str):
        return before + content + after
    first = (TextPart(text=before),) if before else ()
    last = (TextPart(text=after),) if after else ()
    return (*first, *content, *last)
