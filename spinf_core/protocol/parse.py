"""From a body to a checked request: what may be refused without a tokenizer is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol.features import Features
from spinf_core.protocol.queries import ParsedQuery, parse_queries
from spinf_core.protocol.request import Input, Message, PackEntry, ScoreRequest, TextPart
from spinf_core.protocol.response import Warning
from spinf_core.protocol.structuring import plain, structure_request
from spinf_core.protocol.text import described, join, quoted
from spinf_core.protocol.unknown import unknown_fields

DEFAULT_LIMITS = Limits()
DEFAULT_FEATURES = Features()

MEDIA_KIND = {"image_url": "image", "input_audio": "audio", "video": "video"}
"""What kind of media a content part other than text holds, by its type."""


@attrs.frozen(kw_only=True)
class ParsedInput:
    """One content and what is asked of it.

    Attributes:
        id: the caller's, or the input's index.
        param: path prefix of the input, such as `inputs.1`; empty where the request is one content.
        messages: as sent, for the places of media.
        content: the text: text parts joined as they are, messages by a blank line.
        queries: in the order of the results.
        parameters: values for the placeholders of a pack's context.
    """

    id: str
    param: str
    messages: tuple[Message, ...]
    content: str
    queries: tuple[ParsedQuery, ...]
    parameters: Mapping[str, str]

    @property
    def messages_param(self) -> str:
        """Dotted path of the messages, which errors about the content name."""
        return join(self.param, "messages")


@attrs.frozen(kw_only=True)
class ParsedRequest:
    """A request that can be compiled.

    Attributes:
        model: as sent, or None for the served one.
        endpoint: the caller's label, or None.
        inputs: at least one.
        packs: prompt packs to run on every input.
        warnings: about the request as a whole.
        limits: in force for this call.
        features: on for this call.
    """

    model: str | None
    endpoint: str | None
    inputs: tuple[ParsedInput, ...]
    packs: tuple[PackEntry, ...]
    warnings: tuple[Warning, ...]
    limits: Limits
    features: Features


def parse_request(
    body: object,
    *,
    limits: Limits = DEFAULT_LIMITS,
    features: Features = DEFAULT_FEATURES,
    trusted: bool = False,
    missing_scoring: Literal["invalid_field", "scoring_required"] = "invalid_field",
) -> ParsedRequest:
    """Check a request.

    Args:
        body: the JSON value (`wire.json_loads` makes one of bytes), or a `ScoreRequest`.
        limits: the server's; a trusted caller's `limits` lower them.
        features: the server's; a trusted caller's `features` lower them.
        trusted: whether the caller's `limits` and `features` count; from anyone else they are ignored.
        missing_scoring: the code for a body without `scoring`; `scoring_required` for the chat endpoint.

    Raises:
        Rejected: for the first problem found; its `param` is the dotted path of the field at fault.
    """
    value = plain(body) if isinstance(body, ScoreRequest) else body
    if not isinstance(value, dict):
        raise Rejected("invalid_field", f"the request must be a JSON object, not {described(value)}")
    if value.get("scoring") is None:
        raise Rejected(missing_scoring, "scoring is required: it holds the queries", "scoring")
    request = structure_request(value)
    if trusted:
        limits = _lowered(limits, request.limits)
        features = features if request.features is None else features.lowered(request.features)
    return ParsedRequest(
        model=request.model,
        endpoint=request.endpoint,
        inputs=_inputs(request, limits, features),
        packs=_packs(request.scoring.packs, features),
        warnings=unknown_fields(value),
        limits=limits,
        features=features,
    )


def _lowered(limits: Limits, overrides: object) -> Limits:
    if overrides is None:
        return limits
    if not isinstance(overrides, Mapping):
        raise Rejected("invalid_field", f"limits must be an object, not {described(overrides)}", "limits")
    return limits.lowered(overrides)


def _packs(packs: tuple[PackEntry, ...], features: Features) -> tuple[PackEntry, ...]:
    for index, entry in enumerate(packs):
        if entry.id not in features.packs:
            param = f"scoring.packs.{index}.id"
            raise Rejected("unknown_pack", f"{param}: this server has no pack {quoted(entry.id)}", param)
    return packs


def _inputs(request: ScoreRequest, limits: Limits, features: Features) -> tuple[ParsedInput, ...]:
    if request.messages is None and request.inputs is None:
        raise Rejected("invalid_field", "messages (one content) or inputs (many) is required", "messages")
    if request.messages is not None and request.inputs is not None:
        raise Rejected("invalid_field", "inputs and messages exclude one another; send one of them", "inputs")
    if request.inputs is None:
        entries: tuple[Input, ...] = (Input(messages=request.messages or ()),)
    else:
        entries = request.inputs
        if not entries:
            raise Rejected("invalid_field", "inputs must hold at least one input", "inputs")
    params = [""] if request.inputs is None else [f"inputs.{index}" for index in range(len(entries))]
    contents = [
        _content(entry.messages, join(param, "messages"), features) for entry, param in zip(entries, params, strict=True)
    ]
    shared = _Shared(request, limits, features)
    parsed = []
    seen: set[str] = set()
    for index, (entry, param, content) in enumerate(zip(entries, params, contents, strict=True)):
        identifier = str(index) if entry.id is None else entry.id
        if identifier in seen:
            where = f"{param}.id"
            raise Rejected("duplicate_id", f"{where} repeats {quoted(identifier)}", where)
        seen.add(identifier)
        parsed.append(
            ParsedInput(
                id=identifier,
                param=param,
                messages=entry.messages,
                content=content,
                queries=shared.select(entry, param),
                parameters=entry.parameters or {},
            )
        )
    return tuple(parsed)


def _content(messages: tuple[Message, ...], param: str, features: Features) -> str:
    for index, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if not isinstance(part, TextPart):
                _check_media(MEDIA_KIND[part.type], f"{param}.{index}.content.{place}", features)
    return content_text(messages)


def content_text(messages: tuple[Message, ...]) -> str:
    """The text of messages: text parts joined as they are, messages by a blank line."""
    texts = []
    for message in messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        else:
            texts.append("".join(part.text for part in message.content if isinstance(part, TextPart)))
    return "\n\n".join(texts)


def _check_media(kind: str, param: str, features: Features) -> None:
    if kind not in features.media:
        raise Rejected("media_not_supported", f"{param}: the served model does not read {kind}; send text", param)
    if kind in features.media_disabled:
        raise Rejected("media_disabled", f"{param}: {kind} is switched off here; send text", param)


class _Shared:
    """The request's shared queries, checked once, and the choice of them for each input."""

    def __init__(self, request: ScoreRequest, limits: Limits, features: Features) -> None:
        self._scoring = request.scoring
        self._limits = limits
        self._features = features
        self._queries = parse_queries(request.scoring.queries, "scoring.queries", request.scoring, limits, features)
        self._by_id = {query.id: query for query in self._queries}
        self._all_counted = False

    def select(self, entry: Input, param: str) -> tuple[ParsedQuery, ...]:
        """The queries of an input: those that `query_ids` names, then its own; all shared ones where it has neither."""
        if entry.query_ids is None and entry.queries is None:
            if not self._all_counted:
                self._count(self._queries, "scoring.queries")
                self._all_counted = True
            return self._queries
        chosen = self._named(entry.query_ids or (), f"{param}.query_ids")
        own_param = f"{param}.queries"
        own = parse_queries(entry.queries or (), own_param, self._scoring, self._limits, self._features)
        taken = {query.id for query in chosen}
        for query in own:
            if query.id in taken:
                where = f"{query.param}.id"
                raise Rejected("duplicate_id", f"{where} repeats the shared query {quoted(query.id)}", where)
        queries = (*chosen, *own)
        self._count(queries, f"{param}.query_ids" if entry.queries is None else own_param)
        return queries

    def _named(self, ids: Sequence[str], param: str) -> list[ParsedQuery]:
        chosen: dict[str, ParsedQuery] = {}
        for index, name in enumerate(ids):
            where = f"{param}.{index}"
            if name in chosen:
                raise Rejected("duplicate_id", f"{where} repeats {quoted(name)}", where)
            if name not in self._by_id:
                raise Rejected("unknown_query_id", f"{where}: scoring.queries has no query {quoted(name)}", where)
            chosen[name] = self._by_id[name]
        return list(chosen.values())

    def _count(self, queries: Sequence[ParsedQuery], param: str) -> None:
        if not queries and not self._scoring.packs:
            raise Rejected("empty_queries", f"{param} leaves an input without queries; give it at least one", param)
        prompts = sum(len(query.combinations) for query in queries)
        if prompts > self._limits.max_prompts_per_input:
            most = self._limits.max_prompts_per_input
            raise Rejected("too_many_prompts", f"{param} makes {prompts} prompts for an input; at most {most}", param)
        slots = sum(len(query.combinations) for query in queries if query.kind != "scored")
        if slots > self._limits.max_extractions_per_input:
            most = self._limits.max_extractions_per_input
            message = f"{param} makes {slots} extraction slots for an input; at most {most} may be"
            raise Rejected("too_many_extractions", message, param)
