"""Strict structuring of a JSON value into `ScoreRequest`.

cattrs by default makes 5 of "5", 1 of true and a list of a string. Every hook here takes its own JSON type alone, and
what fails leaves as `Rejected` with the dotted path of the first field at fault, in the order of the document.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

import attrs
from cattrs import ClassValidationError, Converter
from cattrs.gen import make_dict_structure_fn

from spinf_core.errors import Rejected
from spinf_core.protocol import request as schema
from spinf_core.protocol.text import described, has_lone_surrogate, join, quoted, segment

Hook = Callable[[Any, Any], Any]

PARTS: dict[str, type[schema.Part]] = {
    "text": schema.TextPart,
    "image_url": schema.ImagePart,
    "input_audio": schema.AudioPart,
    "video": schema.VideoPart,
}


class _Unfit(ValueError):
    """A value that does not fit, with the path to it from the value being structured."""

    def __init__(self, problem: str, *path: str, code: str = "invalid_field") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = list(path)
        self.code = code


def structure_request(body: Mapping[str, object]) -> schema.ScoreRequest:
    """Structure a body.

    Raises:
        Rejected: `invalid_field`, or `unsupported_content` for a content part of unknown type or a text part without
            text; `param` is the path of the first field at fault.
    """
    try:
        return _REQUEST(body, schema.ScoreRequest)  # type: ignore[no-any-return]
    except _Unfit as error:
        param = join(*error.path) or None
        raise Rejected(error.code, f"{param or 'the request'} {error.problem}", param) from None


def plain(value: object) -> object:
    """The JSON value that a typed request stands for, so that it is checked like one that was sent."""
    kind = type(value)
    if attrs.has(kind):
        return {field.name: plain(getattr(value, field.name)) for field in attrs.fields(kind)}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if isinstance(value, Mapping):
        return {key: plain(element) for key, element in value.items()}
    return value


def _wrong(expected: str, value: object) -> NoReturn:
    raise _Unfit(f"must be {expected}, not {described(value)}")


def _string(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        _wrong("a string", value)
    if has_lone_surrogate(value):
        raise _Unfit("holds half a character (a lone surrogate); send well-formed Unicode")
    return value


def _boolean(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        _wrong("true or false", value)
    return value


def _integer(value: Any, _: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _wrong("an integer", value)
    return value


def _number(value: Any, _: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        _wrong("a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _wrong("a finite number", value)
    return number


def _literal(of: Any, _: Converter) -> Hook:
    allowed = get_args(of)

    def structure(value: Any, _: Any) -> str:
        text = _string(value, str)
        if text not in allowed:
            raise _Unfit(f"must be one of {', '.join(allowed)}, not {quoted(text)}")
        return text

    return structure


def _annotated(of: Any, converter: Converter) -> Hook:
    base, bound = get_args(of)
    inner = converter.get_structure_hook(base)

    def string(value: Any, _: Any) -> str:
        text: str = inner(value, base)
        if not bound.least <= len(text) <= bound.most:
            raise _Unfit(f"must have {bound.least} to {bound.most} characters, not {len(text)}")
        return text

    def number(value: Any, _: Any) -> Any:
        found = inner(value, base)
        if bound.above is not None and found <= bound.above:
            raise _Unfit(f"must be above {bound.above}, not {value}")
        if bound.least is not None and found < bound.least:
            raise _Unfit(f"must be at least {bound.least}, not {value}")
        if bound.most is not None and found > bound.most:
            raise _Unfit(f"must be at most {bound.most}, not {value}")
        return found

    return string if isinstance(bound, schema.Length) else number


def _optional(of: Any, converter: Converter) -> Hook:
    base = functools.reduce(operator.or_, (option for option in get_args(of) if option is not types.NoneType))
    inner = converter.get_structure_hook(base)
    return lambda value, _: None if value is None else inner(value, base)


def _tuple(of: Any, converter: Converter) -> Hook:
    element_type = get_args(of)[0]
    inner = converter.get_structure_hook(element_type)

    def structure(value: Any, _: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            _wrong("a list", value)
        elements = []
        for element in value:
            try:
                elements.append(inner(element, element_type))
            except _Unfit as error:
                error.path.insert(0, str(len(elements)))
                raise
        return tuple(elements)

    return structure


def _mapping(of: Any, converter: Converter) -> Hook:
    element_type = get_args(of)[1]
    inner = converter.get_structure_hook(element_type)

    def structure(value: Any, _: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            _wrong("an object", value)
        elements = {}
        for key, element in value.items():
            try:
                elements[_string(key, str)] = inner(element, element_type)
            except _Unfit as error:
                error.path.insert(0, segment(key))
                raise
        return elements

    return structure


def _class(of: type[Any], converter: Converter) -> Hook:
    inner = make_dict_structure_fn(of, converter, _cattrs_detailed_validation=True)
    known = attrs.fields_dict(of).keys()
    # A pack decides what a service does with a content: an override that is not understood must not be passed over.
    closed = of in (schema.PackEntry, schema.PackDecision)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            _wrong("an object", value)
        if closed and not value.keys() <= known:
            name = next(name for name in value if name not in known)
            raise _Unfit(f"is not a field here; the fields are {', '.join(known)}", segment(name))
        given = {name: field for name, field in value.items() if field is not None} if None in value.values() else value
        try:
            return inner(given, of)
        except ClassValidationError as error:
            raise _first_problem(error, value) from None

    return structure


def _first_problem(error: ClassValidationError, value: Mapping[str, object]) -> Exception:
    """Of the fields of `value` that do not fit, the first one in the document; a missing field comes last."""
    order = {name: index for index, name in enumerate(value)}
    with_notes, without = error.group_exceptions()
    if without:
        return without[0]
    problem, note = min(with_notes, key=lambda pair: order.get(pair[1].name, len(order)))
    if isinstance(problem, KeyError):
        return _Unfit("is required", note.name)
    if isinstance(problem, _Unfit):
        # A new exception, since cattrs has left its note of this field on the old one.
        return _Unfit(problem.problem, note.name, *problem.path, code=problem.code)
    return problem


def _part(_: Any, converter: Converter) -> Hook:
    hooks = {name: converter.get_structure_hook(part) for name, part in PARTS.items()}

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            _wrong("a content part, an object", value)
        if value.get("type") is None:
            raise _Unfit("is required", "type")
        try:
            name = _string(value["type"], str)
        except _Unfit as error:
            error.path.insert(0, "type")
            raise
        if name not in hooks:
            known = ", ".join(PARTS)
            raise _Unfit(f"is a content part of the unknown type {quoted(name)}; known are {known}", code="unsupported_content")
        if name == "text" and value.get("text") is None:
            raise _Unfit("is a text part without text", code="unsupported_content")
        return hooks[name](value, PARTS[name])

    return structure


def _string_or_list(strings: Hook, lists: Hook, expected: str) -> Hook:
    def structure(value: Any, of: Any) -> Any:
        if isinstance(value, str):
            return strings(value, of)
        if isinstance(value, (list, tuple)):
            return lists(value, of)
        return _wrong(expected, value)

    return structure


def _content(_: Any, converter: Converter) -> Hook:
    parts = converter.get_structure_hook(tuple[schema.Part, ...])
    return _string_or_list(_string, parts, "a string or a list of content parts")


def _combinations(_: Any, converter: Converter) -> Hook:
    listed = converter.get_structure_hook(tuple[Mapping[str, schema.Value], ...])
    every = converter.get_structure_hook(Literal["all"])
    return _string_or_list(every, listed, 'a list of objects or "all"')


def _generate(_: Any, converter: Converter) -> Hook:
    inner = converter.get_structure_hook(schema.Generate)

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, dict):
            return inner(value, schema.Generate)
        return _wrong("true, false or an object", value)

    return structure


def _is_optional(of: Any) -> bool:
    return get_origin(of) in (Union, types.UnionType) and types.NoneType in get_args(of)


def _converter() -> Converter:
    converter = Converter()
    for scalar, hook in ((str, _string), (bool, _boolean), (int, _integer), (float, _number)):
        converter.register_structure_hook(scalar, hook)
    factories: list[tuple[Callable[[Any], bool], Callable[[Any, Converter], Hook]]] = [
        (lambda of: attrs.has(of), _class),
        (lambda of: get_origin(of) is tuple, _tuple),
        (lambda of: get_origin(of) is Mapping, _mapping),
        (lambda of: get_origin(of) is Literal, _literal),
        (lambda of: get_origin(of) is Annotated, _annotated),
        (_is_optional, _optional),
        (lambda of: of == schema.Part, _part),
        (lambda of: of == schema.Content, _content),
        (lambda of: of == schema.Combinations, _combinations),
        (lambda of: of == bool | schema.Generate, _generate),
    ]
    for applies, factory in factories:
        converter.register_structure_hook_factory(applies)(factory)
    return converter


_REQUEST = _converter().get_structure_hook(schema.ScoreRequest)
