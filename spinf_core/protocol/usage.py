"""What a call counted and how long it took."""

from __future__ import annotations

import math
from typing import Any

import attrs

Json = dict[str, Any]

TO_INTEGER = 1.5 * 2**52
"""Added to a smaller float and taken away again it leaves the nearest integer: floats of its size have no fraction."""


def rounded(number: float) -> float:
    """The number as the public JSON shows it, to 6 decimals.

    Raises:
        ValueError: for NaN and infinities, which JSON lacks and no result is.
    """
    scaled = number * 1e6
    if -1e9 < scaled < 1e9:
        # What `round` finds, in a third of its time: a product of this size is off by less than a millionth, so the integer is
        # right where it is no near tie, and a quotient of such integers is the float nearest to it.
        whole = (scaled + TO_INTEGER) - TO_INTEGER
        if -0.4999 < scaled - whole < 0.4999:
            return whole / 1e6 + 0.0  # + 0.0 turns -0.0 into 0.0
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be answered: JSON has finite numbers only")
    return round(number, 6) + 0.0


def number_text(number: float) -> str:
    """`rounded` as JSON writes it, in half the time or less.

    Raises:
        ValueError: see `rounded`.
    """
    if 1e-4 <= number < 1e9 or -1e9 < number <= -1e-4:  # of up to 15 digits, which `repr` would write with no exponent
        text = f"{number:.6f}"
        if text[-1] != "0":
            return text
        text = text.rstrip("0")
        return f"{text}0" if text[-1] == "." else text
    return repr(rounded(number))


@attrs.frozen(kw_only=True)
class PromptTokensDetails:
    """The parts of `prompt_tokens`; content tokens exclude the beginning-of-sequence token."""

    content_tokens: int
    text_tokens: int
    query_tokens: int
    floor_tokens: int


@attrs.frozen(kw_only=True)
class ContentUsage:
    """What the contents were made of; audio seconds may be fractional."""

    tokens: int
    text_tokens: int
    images: int = 0
    image_tokens: int = 0
    video_frames: int = 0
    video_tokens: int = 0
    audio_seconds: float = 0
    audio_tokens: int = 0


@attrs.frozen(kw_only=True)
class ScoringUsage:
    """What was scored. A floor counts once per distinct filled template and options of the call."""

    queries: int
    combinations: int
    options: int
    prompts: int
    floor_prompts: int
    query_tokens: int
    floor_tokens: int


@attrs.frozen(kw_only=True)
class ExtractionUsage:
    """What was searched for."""

    slots: int
    text: int
    number: int
    currency: int
    answers: int
    decode_tokens: int


@attrs.frozen(kw_only=True)
class GenerationUsage:
    """What was generated."""

    slots: int
    sequences: int
    max_tokens: int
    generated_tokens: int


@attrs.frozen(kw_only=True)
class PacksUsage:
    """What the prompt packs asked."""

    count: int
    query_tokens: int


@attrs.frozen(kw_only=True)
class Usage:
    """Counts of one call, the same whether anything came from a cache or not."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails
    inputs: int
    content: ContentUsage
    scoring: ScoringUsage
    extraction: ExtractionUsage | None = None
    generation: GenerationUsage | None = None
    packs: PacksUsage | None = None
    processed_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> Json:
        """The public JSON; the parts that the call did not use are left out."""
        content = attrs.asdict(self.content) | {"audio_seconds": rounded(self.content.audio_seconds)}
        optional = {"extraction": self.extraction, "generation": self.generation, "packs": self.packs}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": attrs.asdict(self.prompt_tokens_details),
            "inputs": self.inputs,
            "content": content,
            "scoring": attrs.asdict(self.scoring),
            **{name: attrs.asdict(part) for name, part in optional.items() if part is not None},
            "processed_tokens": self.processed_tokens,
        }


@attrs.frozen(kw_only=True)
class Timing:
    """Milliseconds of one call."""

    wall_ms: float
    queue_ms: float
    compile_ms: float
    score_ms: float
    gpu_busy_ms: float
    decode_ms: float | None = None

    def to_dict(self) -> Json:
        """The public JSON."""
        return {name: rounded(value) for name, value in attrs.asdict(self).items() if value is not None}
