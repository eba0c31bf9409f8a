"""The request as it is sent, in frozen attrs classes whose fields are named as in the JSON.

Annotations carry the ranges; `structuring` enforces them. A field with a default may be left out or be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs

MAX_ID_CHARS = 128
MAX_VALUE_CHARS = 256


@attrs.frozen
class Length:
    """Bounds, inclusive, on the characters of a string."""

    least: int
    most: int


@attrs.frozen
class Within:
    """Bounds, inclusive, on a number; `above` bounds it from below, exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None


Identifier = Annotated[str, Length(1, MAX_ID_CHARS)]
Value = Annotated[str, Length(0, MAX_VALUE_CHARS)]
Detail = Literal["low", "auto", "high"]


@attrs.frozen(kw_only=True)
class TextPart:
    """Text."""

    type: Literal["text"] = "text"
    text: str


@attrs.frozen(kw_only=True)
class ImageUrl:
    """An image as a data URL."""

    url: str
    detail: Detail = "auto"


@attrs.frozen(kw_only=True)
class ImagePart:
    """An image."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl


@attrs.frozen(kw_only=True)
class InputAudio:
    """Audio as base64 of a file in the named format."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "m4a", "webm"]


@attrs.frozen(kw_only=True)
class AudioPart:
    """Audio."""

    type: Literal["input_audio"] = "input_audio"
    input_audio: InputAudio


@attrs.frozen(kw_only=True)
class Frame:
    """A video frame and its time in seconds."""

    t: Annotated[float, Within(least=0)]
    image_url: ImageUrl


@attrs.frozen(kw_only=True)
class Video:
    """A video as frames sampled by the caller."""

    frames: tuple[Frame, ...]
    detail: Detail = "low"


@attrs.frozen(kw_only=True)
class VideoPart:
    """A video."""

    type: Literal["video"] = "video"
    video: Video


Part = TextPart | ImagePart | AudioPart | VideoPart
Content = str | tuple[Part, ...]


@attrs.frozen(kw_only=True)
class Message:
    """A piece of the content. The role is accepted for the OpenAI SDKs' sake and not rendered."""

    role: str = "user"
    content: Content


@attrs.frozen(kw_only=True)
class Calibration:
    """`p_calibrated` = sigmoid(a · logit(p) + b)."""

    a: float
    b: float


@attrs.frozen(kw_only=True)
class Generate:
    """How a generated answer is sampled; None leaves the choice to the server."""

    temperature: Annotated[float, Within(least=0, most=2)] | None = None
    top_p: Annotated[float, Within(above=0, most=1)] | None = None
    top_k: Annotated[int, Within(least=1, most=100)] | None = None
    seed: Annotated[int, Within(least=-(2**63), most=2**64 - 1)] | None = None
    n: Annotated[int, Within(least=1, most=6)] = 1


Combinations = Literal["all"] | tuple[Mapping[str, Value], ...]


@attrs.frozen(kw_only=True)
class Query:
    """A question: a template, and what goes into it."""

    id: Identifier
    template: str
    options: tuple[str, ...] | None = None
    combinations: Combinations | None = None
    values: Mapping[str, tuple[Value, ...]] | None = None
    empty_floor: bool | None = None
    group: Identifier | None = None
    max_tokens: Annotated[int, Within(least=1, most=100)] | None = None
    top_k: Annotated[int, Within(least=1, most=20)] | None = None
    calibration: Calibration | None = None
    generate: bool | Generate | None = None


@attrs.frozen(kw_only=True)
class PackDecision:
    """What a call changes in a pack's decision."""

    mode: Literal["max", "per_category", "micro_layer"] | None = None
    threshold: float | None = None
    thresholds: Mapping[str, float | None] | None = None
    critical: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class PackEntry:
    """A prompt pack to run."""

    id: str
    version: str | None = None
    context: str | None = None
    decision: PackDecision | None = None
    include_queries: bool = False


@attrs.frozen(kw_only=True)
class Scoring:
    """What to ask of every content."""

    queries: tuple[Query, ...] = ()
    packs: tuple[PackEntry, ...] = ()
    empty_floor: bool = True
    case_insensitive: bool = True


@attrs.frozen(kw_only=True)
class Input:
    """One content of several, and which questions are asked of it."""

    id: Identifier | None = None
    messages: tuple[Message, ...]
    query_ids: tuple[str, ...] | None = None
    queries: tuple[Query, ...] | None = None
    parameters: Mapping[str, str] | None = None


@attrs.frozen(kw_only=True)
class ScoreRequest:
    """The whole request. `limits` and `features` are a trusted caller's and are not looked at otherwise."""

    model: str | None = None
    messages: tuple[Message, ...] | None = None
    inputs: tuple[Input, ...] | None = None
    scoring: Scoring
    endpoint: Annotated[str, Length(0, MAX_ID_CHARS)] | None = None
    limits: Any = None
    features: Any = None
