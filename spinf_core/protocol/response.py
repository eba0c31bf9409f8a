"""The response, in frozen attrs classes that hold unrounded numbers; `to_dict` gives the public JSON.

Numbers are rounded to 6 decimals there and nowhere else. A member that the contract marks optional is left out when it
is None; the others are null.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import repeat
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import attrs

from spinf_core.protocol.usage import Json, Timing, Usage, number_text, rounded

T = TypeVar("T")

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def request_id(now_ms: int | None = None) -> str:
    """A fresh request id: `scr_` and a ULID (https://github.com/ulid/spec), so that ids sort by their millisecond.

    Args:
        now_ms: milliseconds since 1970, default now.
    """
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    number = milliseconds << 80 | secrets.randbits(80)
    return "scr_" + "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def _rounded_or_null(number: float | None) -> float | None:
    return None if number is None else rounded(number)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def json_text(value: object) -> str:
    """A value of the public JSON as a body holds it.

    Raises:
        ValueError: where a number is not finite.
    """
    return _ENCODER.encode(value)


def _present(**members: object) -> Json:
    return {name: value for name, value in members.items() if value is not None}


@attrs.frozen
class Warning:
    """Something to look at that changed no score."""

    code: str
    message: str
    input_id: str | None = None
    query_id: str | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        return {"code": self.code, "input_id": self.input_id, "query_id": self.query_id, "message": self.message}


@attrs.frozen
class OptionResult:
    """One option: the log of its probability mass, its share among the options, and that share without content."""

    text: str
    logprob: float
    p: float
    floor_p: float | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        return _option(self.text, self.logprob, self.p, self.floor_p)


def _option(text: str, logprob: float, p: float, floor_p: float | None) -> Json:
    return {
        "text": text,
        "logprob": rounded(logprob),
        "p": rounded(p),
        "floor_p": None if floor_p is None else rounded(floor_p),
    }


def _option_text(text: str, logprob: float, p: float, floor_p: float | None) -> str:
    """`_option` as JSON writes it."""
    numbers = f'"logprob": {number_text(logprob)}, "p": {number_text(p)}'
    floor = "null" if floor_p is None else number_text(floor_p)
    return f'{{"text": {encode_basestring(text)}, {numbers}, "floor_p": {floor}}}'


class _Kept:
    """Where a combination keeps its options once somebody looked at them: no field, for that says nothing of the result."""

    __slots__ = ("_options",)
    _options: tuple[OptionResult, ...]


@attrs.frozen(repr=False)
class CombinationResult(_Kept):
    """One prompt: its options in their order, and the probability on none of them, with and without content.

    A response may hold very many: an option is an object only once somebody looks at it.

    Attributes:
        values: that filled the template.
        texts, logprob, p: of each option, see `OptionResult`. floor_p: of each, or None.
        residual, floor_residual: the probability on no option.
    """

    values: Mapping[str, str]
    texts: tuple[str, ...]
    logprob: tuple[float, ...]
    p: tuple[float, ...]
    residual: float
    floor_p: tuple[float, ...] | None = None
    floor_residual: float | None = None

    @property
    def options(self) -> tuple[OptionResult, ...]:
        """The options, made once. No `cached_property`: with slots that makes every other attribute slow to read."""
        try:
            return self._options
        except AttributeError:
            object.__setattr__(self, "_options", tuple(self._each(OptionResult)))
            return self._options

    def _each(self, make: Callable[[str, float, float, float | None], T]) -> Iterator[T]:
        """What is made of each option."""
        return map(make, self.texts, self.logprob, self.p, repeat(None) if self.floor_p is None else self.floor_p)

    def __repr__(self) -> str:
        members = f"values={self.values!r}, options={self.options!r}, residual={self.residual!r}"
        return f"CombinationResult({members}, floor_residual={self.floor_residual!r})"

    def to_dict(self) -> Json:
        """The public JSON."""
        floor = self.floor_residual
        return {
            "values": dict(self.values),
            "options": list(self._each(_option)),
            "residual": rounded(self.residual),
            "floor_residual": None if floor is None else rounded(floor),
        }

    def to_json(self) -> str:
        """The public JSON as text."""
        floor = self.floor_residual
        values = ", ".join([f"{encode_basestring(name)}: {encode_basestring(value)}" for name, value in self.values.items()])
        options = ", ".join(self._each(_option_text))
        residuals = f'{number_text(self.residual)}, "floor_residual": {"null" if floor is None else number_text(floor)}'
        return f'{{"values": {{{values}}}, "options": [{options}], "residual": {residuals}}}'


@attrs.frozen
class QueryResult:
    """A scored query."""

    id: str
    combinations: tuple[CombinationResult, ...]

    def to_dict(self) -> Json:
        """The public JSON."""
        return {"id": self.id, "combinations": [combination.to_dict() for combination in self.combinations]}

    def to_json(self) -> str:
        """The public JSON as text, in half the time of writing `to_dict`: a response may hold very many numbers."""
        combinations = ", ".join([combination.to_json() for combination in self.combinations])
        return f'{{"id": {encode_basestring(self.id)}, "combinations": [{combinations}]}}'


@attrs.frozen(kw_only=True)
class Answer:
    """An answer: a searched one has `p`, and `value` and `currency` where it is a number; a generated one `finish`."""

    text: str
    p: float | None = None
    p_calibrated: float | None = None
    value: float | None = None
    currency: str | None = None
    finish: Literal["stop", "length"] | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        return {"text": self.text} | _present(
            p=_rounded_or_null(self.p),
            p_calibrated=_rounded_or_null(self.p_calibrated),
            value=_rounded_or_null(self.value),
            currency=self.currency,
            finish=self.finish,
        )


@attrs.frozen(kw_only=True)
class ExtractionResult:
    """One filled extraction slot: answers, the likeliest first, and the probability on all of them."""

    values: Mapping[str, str]
    answers: tuple[Answer, ...]
    mass: float | None = None
    p_negative: float | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        members: Json = {"values": dict(self.values), "answers": [answer.to_dict() for answer in self.answers]}
        return members | _present(mass=_rounded_or_null(self.mass), p_negative=_rounded_or_null(self.p_negative))


@attrs.frozen
class ExtractionQueryResult:
    """An extraction query."""

    id: str
    kind: Literal["text", "number", "currency", "generated"]
    combinations: tuple[ExtractionResult, ...]

    def to_dict(self) -> Json:
        """The public JSON."""
        combinations = [combination.to_dict() for combination in self.combinations]
        return {"id": self.id, "kind": self.kind, "combinations": combinations}

    def to_json(self) -> str:
        """The public JSON as text."""
        return json_text(self.to_dict())


@attrs.frozen
class InputResult:
    """The answers on one input; `packs` are the pack evaluator's entries, None where no pack was asked for."""

    input_id: str
    queries: tuple[QueryResult | ExtractionQueryResult, ...]
    packs: tuple[Mapping[str, Any], ...] | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        members: Json = {"input_id": self.input_id, "queries": [query.to_dict() for query in self.queries]}
        if self.packs is not None:
            members["packs"] = [dict(pack) for pack in self.packs]
        return members

    @cached_property
    def json(self) -> str:
        """The public JSON as text, written once."""
        packs = "" if self.packs is None else f', "packs": {json_text([dict(pack) for pack in self.packs])}'
        queries = ", ".join([query.to_json() for query in self.queries])
        return f'{{"input_id": {encode_basestring(self.input_id)}, "queries": [{queries}]{packs}}}'


@attrs.frozen(kw_only=True)
class ScoreResponse:
    """The whole response; `results` are in the order of the inputs."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    results: tuple[InputResult, ...]
    usage: Usage
    timing: Timing
    warnings: tuple[Warning, ...] = ()
    endpoint: str | None = None

    def to_dict(self) -> Json:
        """The public JSON.

        Raises:
            ValueError: where a number is not finite.
        """
        return self._members([result.to_dict() for result in self.results])

    def to_json(self, extra: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """The public JSON as a body; what is written already of the results is not written again.

        Args:
            extra: members to add.

        Raises:
            ValueError: where a number is not finite.
        """
        texts = {name: json_text(value) for name, value in (self._members(None) | dict(extra)).items()}
        texts["results"] = f"[{', '.join(result.json for result in self.results)}]"
        return ("{" + ", ".join(f"{encode_basestring(name)}: {text}" for name, text in texts.items()) + "}").encode()

    def _members(self, results: object) -> Json:
        endpoint = {} if self.endpoint is None else {"endpoint": self.endpoint}
        return {
            "id": self.id,
            "object": "score",
            "created": self.created,
            "model": self.model,
            **endpoint,
            "system_fingerprint": self.system_fingerprint,
            "results": results,
            "warnings": [warning.to_dict() for warning in self.warnings],
            "usage": self.usage.to_dict(),
            "timing": self.timing.to_dict(),
        }
