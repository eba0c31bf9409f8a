"""The limits of a request: what the protocol validates with, what settings carry and what `GET /v1/models` shows."""

from __future__ import annotations

import attrs


def _whole_number(limits: Limits, field: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field.name}: expected a whole number, got {value!r}")
    if value < field.metadata["least"]:
        raise ValueError(f"{field.name}: expected at least {field.metadata['least']}, got {value}")


def _limit(default: int, help: str, *, least: int = 0) -> int:
    """A whole-number field; its metadata is what flags, environment names and documentation are made from."""
    field: int = attrs.field(default=default, metadata={"help": help, "least": least}, validator=_whole_number)
    return field


@attrs.frozen(kw_only=True)
class Limits:
    """What one request may ask for. A trusted caller may lower any of them for one call, never raise it."""

    max_content_tokens: int = _limit(4096, "tokens of one input's content")
    max_query_tokens: int = _limit(256, "tokens of one filled template; a pack's own templates are exempt", least=1)
    max_prompts_per_input: int = _limit(10_000, "filled templates of one input", least=1)
    max_extractions_per_input: int = _limit(10, "extraction slots of one input")
    max_processed_tokens: int = _limit(2_000_000, "tokens of one request, contents and questions and floors", least=1)
    max_options: int = _limit(1000, "options of one query", least=1)
    max_option_tokens: int = _limit(5, "tokens of one option", least=1)
    max_frames: int = _limit(1024, "video frames of one input")
    max_audio_seconds: int = _limit(600, "seconds of audio of one input")
    max_image_pixels: int = _limit(50_000_000, "pixels of one image", least=1)

    def lowered(self, **wanted: int) -> Limits:
        """These limits with each of `wanted` applied, capped by the value here.

        Raises:
            TypeError: for a name that is no limit, or a value that is no whole number.
            ValueError: for a value below what the limit allows.
        """
        changes = attrs.evolve(self, **wanted)
        return attrs.evolve(self, **{name: min(getattr(self, name), getattr(changes, name)) for name in wanted})
