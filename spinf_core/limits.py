"""The limits on what one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spinf_core.errors import Rejected


def _positive(limits: Limits, attribute: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"limit {attribute.name} is {value!r}; it must be a positive integer")


@attrs.frozen(kw_only=True)
class Limits:
    """What one request may ask for, each a positive integer.

    Attributes:
        max_content_tokens: tokens of one input's content.
        max_query_tokens: tokens of one filled template with its longest option.
        max_prompts_per_input: filled templates of one input.
        max_extractions_per_input: extraction slots of one input, filled.
        max_processed_tokens: tokens that a whole request may cost the engine.
        max_options: options of one query.
        max_option_tokens: tokens of one option.
        max_frames: video frames of one input.
        max_audio_seconds: seconds of audio of one input.
        max_image_pixels: pixels of one image as sent.
    """

    max_content_tokens: int = attrs.field(default=4096, validator=_positive)
    max_query_tokens: int = attrs.field(default=256, validator=_positive)
    max_prompts_per_input: int = attrs.field(default=10_000, validator=_positive)
    max_extractions_per_input: int = attrs.field(default=10, validator=_positive)
    max_processed_tokens: int = attrs.field(default=2_000_000, validator=_positive)
    max_options: int = attrs.field(default=1000, validator=_positive)
    max_option_tokens: int = attrs.field(default=5, validator=_positive)
    max_frames: int = attrs.field(default=1024, validator=_positive)
    max_audio_seconds: int = attrs.field(default=600, validator=_positive)
    max_image_pixels: int = attrs.field(default=50_000_000, validator=_positive)

    def lowered(self, overrides: Mapping[str, object]) -> Limits:
        """These limits with a trusted caller's own for one call, each capped by the server's.

        Raises:
            Rejected: `invalid_field` with `limits.NAME` for an unknown name or a value that is not a positive integer.
        """
        names = attrs.fields_dict(Limits)
        changes = {}
        for name, value in overrides.items():
            param = "limits." + str(name).encode("utf-8", "backslashreplace").decode()[:128]
            if name not in names:
                raise Rejected("invalid_field", f"{param} is not a limit; the limits are {', '.join(names)}", param)
            if type(value) is not int or value < 1:
                raise Rejected("invalid_field", f"{param} must be a positive integer", param)
            changes[name] = min(value, getattr(self, name))
        return attrs.evolve(self, **changes)
