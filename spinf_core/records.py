"""The frozen records that plugins yield from hooks.

A record is a description: its factory is a string, `"module:attribute"`, imported only when the component is chosen, so that
listing plugins never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

API = 1
"""The version of the factory interfaces that this core speaks."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"expected several strings, got the one string {values!r}; write ({values!r},)")
    return tuple(values)


def _valid_name(record: Record, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not _NAME.match(value):
        raise ValueError(f"{type(record).__name__}.name {value!r}: letters, digits, '.', '_', '-' and '/' only")


def _valid_factory(record: Record, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not _FACTORY.match(value):
        raise ValueError(f"{type(record).__name__} {record.name!r}: factory {value!r} is not 'module:attribute'")


@attrs.frozen(kw_only=True)
class Record:
    """What every record has.

    Attributes:
        name: unique among the records of its hook.
        summary: one line for listings.
        api: the version of the interface that the factory implements; core refuses one it does not speak.
        settings: an attrs class, read from `[plugin.NAME]` of the settings file and from `SPINF_NAME_*`.
    """

    name: str = attrs.field(validator=_valid_name)
    summary: str = attrs.field(validator=attrs.validators.instance_of(str))
    api: int = attrs.field(default=API, validator=attrs.validators.instance_of(int))
    settings: type | None = None


@attrs.frozen(kw_only=True)
class ModelStack(Record):
    """Runs the checkpoints of one architecture family.

    Attributes:
        family: the family's name, as manifests use it.
        model_types: values of `model_type` in a checkpoint's `config.json` that this stack runs.
        factory: `(spinf_core.stack.LoadContext) -> spinf_core.stack.Model`.
        devices: the types of device that it runs on, the preferred one first.
        convert: `(Path of a source file, Path of an empty folder) -> None` writes a checkpoint folder from a file of
            another format; empty where the family reads its checkpoints as they are.
    """

    family: str
    model_types: tuple[str, ...] = attrs.field(converter=_strings)
    factory: str = attrs.field(validator=_valid_factory)
    devices: tuple[str, ...] = attrs.field(converter=_strings, default=("cpu",))
    convert: str = ""


@attrs.frozen(kw_only=True)
class QuantScheme(Record):
    """Supplies the linear layers for named weights.

    Attributes:
        factory: `(spinf_core.quant.interface.SchemeContext) -> spinf_core.quant.interface.Scheme`.
        requires: what the device or checkpoint must offer, such as `("cuda", "fp8")`; empty: anything.
        invariant: whether a row's result is claimed to depend on that row alone.
    """

    factory: str = attrs.field(validator=_valid_factory)
    requires: tuple[str, ...] = attrs.field(converter=_strings, default=())
    invariant: bool = True


@attrs.frozen(kw_only=True)
class MediaEmbedder(Record):
    """Turns one kind of media into rows of the content.

    Attributes:
        kind: `image`, `audio` or `video`.
        families: the stack families whose models it embeds for.
        factory: builds an object with `plan(part)` on the host side and `embed(items)` on the device side.
    """

    kind: str = attrs.field(validator=attrs.validators.in_(("image", "audio", "video")))
    families: tuple[str, ...] = attrs.field(converter=_strings)
    factory: str = attrs.field(validator=_valid_factory)


@attrs.frozen(kw_only=True)
class PackSource(Record):
    """Fetches prompt packs from somewhere.

    Attributes:
        scheme: what stands before the colon of a source, such as `github`.
        factory: `(spinf_core.packs.sources.SourceContext) -> spinf_core.packs.sources.Source`.
    """

    scheme: str
    factory: str = attrs.field(validator=_valid_factory)


@attrs.frozen(kw_only=True)
class Frontend(Record):
    """Exposes the scoring service.

    Attributes:
        factory: builds an object with `routes(service)`, mounted behind core's authentication, limits and request ids, or
            with `run(service)`, which serves by itself.
    """

    factory: str = attrs.field(validator=_valid_factory)


@attrs.frozen(kw_only=True)
class Command(Record):
    """A subcommand, `spinf NAME`.

    Attributes:
        factory: a module-level object with `configure(parser: argparse.ArgumentParser) -> None` and
            `run(arguments: argparse.Namespace) -> int`; a module with these two functions will do:
            `"package.module:COMMAND"`.
    """

    factory: str = attrs.field(validator=_valid_factory)
