"""The limits of a request: what the protocol validates with, what settings carry and what `GET /v1/models` shows."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spinf_core.errors import Rejected


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
    max_frames: int = _limit(1024, "video frames of one input; without effect as yet")
    max_audio_seconds: int = _limit(600, "seconds of audio of one input; without effect as yet")
    max_image_pixels: int = _limit(50_000_000, "pixels of one image; without effect as yet", least=1)

    def lowered(self, overrides: Mapping[str, object]) -> Limits:
        """These limits with a trusted caller's own for one call, each capped by the server's.

        Raises:
            Rejected: `invalid_field` with `limits.NAME` for an unknown name or a value that the limit cannot have.
        """
        fields = attrs.fields_dict(Limits)
        changes = {}
        for name, value in overrides.items():
            param = "limits." + str(name).encode("utf-8", "backslashreplace").decode()[:128]
            if name not in fields:
                raise Rejected("invalid_field", f"{param} is not a limit; the limits are {', '.join(fields)}", param)
            least = fields[name].metadata["least"]
            if type(value) is not int or value < least:
                raise Rejected("invalid_field", f"{param} must be a whole number of at least {least}", param)
            changes[name] = min(value, getattr(self, name))
        return attrs.evolve(self, **changes)
