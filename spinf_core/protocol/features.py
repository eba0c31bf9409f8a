"""What a server can do with a request beyond scored queries on text."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spinf_core.errors import Rejected
from spinf_core.protocol.text import described, segment

MEDIA = ("image", "audio", "video")


@attrs.frozen(kw_only=True)
class Features:
    """What is on.

    Attributes:
        extraction: slots whose answer is searched for.
        generation: `generate` on a `{*}` slot.
        media: kinds that the served model reads, of `MEDIA`.
        media_disabled: kinds that are switched off though the model may read them.
        packs: ids of the prompt packs that may be named.
    """

    extraction: bool = False
    generation: bool = False
    media: frozenset[str] = frozenset()
    media_disabled: frozenset[str] = frozenset()
    packs: frozenset[str] = frozenset()

    def lowered(self, overrides: object) -> Features:
        """These features with a trusted caller's own for one call, which can only switch things off.

        Args:
            overrides: an object with `extraction` and `generation` (booleans), `media` (a boolean, or the kinds to
                leave on) and `packs` (a boolean, or the ids to leave on), each of which may be left out.

        Raises:
            Rejected: `invalid_field` with `features` or `features.NAME`.
        """
        if not isinstance(overrides, Mapping):
            raise _invalid("features", "an object", overrides)
        changed = self
        for name, value in overrides.items():
            param = f"features.{segment(name)}"
            if name == "extraction":
                changed = attrs.evolve(changed, extraction=_boolean(value, param) and self.extraction)
            elif name == "generation":
                changed = attrs.evolve(changed, generation=_boolean(value, param) and self.generation)
            elif name == "media":
                off = frozenset(MEDIA) - _left_on(value, frozenset(MEDIA), param)
                changed = attrs.evolve(changed, media_disabled=self.media_disabled | off)
            elif name == "packs":
                changed = attrs.evolve(changed, packs=self.packs & _left_on(value, self.packs, param))
            else:
                known = "extraction, generation, media, packs"
                raise Rejected("invalid_field", f"{param} is not a feature; the features are {known}", param)
        return changed


def _boolean(value: object, param: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(param, "true or false", value)
    return value


def _left_on(value: object, everything: frozenset[str], param: str) -> frozenset[str]:
    if isinstance(value, bool):
        return everything if value else frozenset()
    if not isinstance(value, (list, tuple)):
        raise _invalid(param, "true, false or a list", value)
    for index, element in enumerate(value):
        if not isinstance(element, str):
            raise _invalid(f"{param}.{index}", "a string", element)
    return frozenset(value)


def _invalid(param: str, expected: str, value: object) -> Rejected:
    return Rejected("invalid_field", f"{param} must be {expected}, not {described(value)}", param)
