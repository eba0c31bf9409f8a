"""The placeholder values of a query: one mapping per prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import attrs

from spinf_core.errors import Rejected
from spinf_core.protocol.request import Query
from spinf_core.protocol.templates import Template
from spinf_core.protocol.text import segment

Values = Mapping[str, str]

MAX_PRODUCT = 1000

NO_VALUES: tuple[Values, ...] = (MappingProxyType({}),)
"""The one combination of a template without placeholders."""


@attrs.frozen
class Product(Sequence[Values]):
    """Every combination of some values, the last name varying fastest.

    Made as they are asked for: a body of 2 MiB can name millions of them.
    """

    values: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return math.prod(map(len, self.values.values()))

    def __iter__(self) -> Iterator[Values]:
        return (dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values()))

    @overload
    def __getitem__(self, index: int) -> Values: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Values]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        return next(itertools.islice(self, range(len(self))[index], None))


def expand(query: Query, template: Template, param: str) -> Sequence[Values]:
    """The combinations of a query, at least one.

    Args:
        query: as sent.
        template: its template, parsed.
        param: dotted path of the query.

    Raises:
        Rejected: `missing_value`, `unknown_placeholder`, `too_many_combinations` or `invalid_field`.
    """
    combinations, values = query.combinations, query.values
    if combinations is None and values is None and len(template.pieces) == 1:
        return NO_VALUES
    placeholders = template.placeholders
    if combinations == "all":
        return _product(values or {}, placeholders, param)
    if values is not None:
        where = f"{param}.values"
        raise Rejected("invalid_field", f'{where} goes with "combinations": "all" and with nothing else', where)
    where = f"{param}.combinations"
    if not combinations:
        if placeholders:
            needed = ", ".join(placeholders)
            raise Rejected("missing_value", f"{where} must give the template's placeholders values: {needed}", where)
        return NO_VALUES
    for index, combination in enumerate(combinations):
        _check_names(combination, placeholders, f"{where}.{index}")
    if not placeholders and len(combinations) > 1:
        raise Rejected("invalid_field", f"{where}.1 is a second combination of a template without placeholders", f"{where}.1")
    return combinations


def combinations_key(combinations: Sequence[Values]) -> Hashable:
    """What is equal for the same combinations in the same order, their names in the same order too."""
    if isinstance(combinations, Product):
        return tuple(combinations.values.items())
    return tuple(tuple(values.items()) for values in combinations)


def _product(values: Mapping[str, tuple[str, ...]], placeholders: tuple[str, ...], param: str) -> Sequence[Values]:
    _check_names(values, placeholders, f"{param}.values")
    for name, listed in values.items():
        if not listed:
            where = f"{param}.values.{name}"
            raise Rejected("invalid_field", f"{where} must hold at least one value", where)
    product = Product(values)
    if len(product) > MAX_PRODUCT:
        where = f"{param}.combinations"
        message = f"{where} makes {len(product)} combinations of the values; at most {MAX_PRODUCT} may be"
        raise Rejected("too_many_combinations", message, where)
    return product if values else NO_VALUES


def _check_names(given: Mapping[str, object], placeholders: tuple[str, ...], param: str) -> None:
    for name in given:
        if name not in placeholders:
            where = f"{param}.{segment(name)}"
            has = f"its placeholders are {', '.join(placeholders)}" if placeholders else "it has none"
            raise Rejected("unknown_placeholder", f"{where} is no placeholder of the template; {has}", where)
    for name in placeholders:
        if name not in given:
            where = f"{param}.{name}"
            raise Rejected("missing_value", f"{where} is missing: the template has the placeholder {{{name}}}", where)
