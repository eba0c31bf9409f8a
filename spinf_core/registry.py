"""What is installed: the records of a composition with their provenance, the plugins that failed, and look-ups.

A thing that is missing raises a `SetupError` that says what would bring it and quotes the plugins that failed, for the
missing thing may be in one of them. Nothing is ever replaced by something else.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, NoReturn, TypeVar

import attrs

from spinf_core.columns import aligned
from spinf_core.errors import SetupError
from spinf_core.manifests import Manifest, Manifests
from spinf_core.records import Command, Frontend, MediaEmbedder, ModelStack, PackSource, QuantScheme, Record
from spinf_core.strict import nearest

R = TypeVar("R", covariant=True)
T = TypeVar("T", bound=Record)

_FAMILIES = {
    "spinf-smollm2": ("llama",),
    "spinf-gemma4": ("gemma4", "gemma4_unified"),
    "spinf-qwen35": ("qwen3_5", "qwen3_5_text"),
}
_MODELS = {
    "spinf-smollm2": ("smollm2-135m", "smollm2"),
    "spinf-gemma4": (
        *("spinf/gemma-4-12b-fp8", "spinf-12b", "google/gemma-4-12b", "gemma-4-12b"),
        *("spinf/gemma-4-31b-fp8", "spinf-31b", "google/gemma-4-31b", "gemma-4-31b"),
    ),
    "spinf-qwen35": ("spinf/qwen3.8-27b-int4", "qwen3.8-27b-s"),
}

FIRST_PARTY: dict[tuple[str, str], str] = {
    **{("family", name): distribution for distribution, names in _FAMILIES.items() for name in names},
    **{("model", name): distribution for distribution, names in _MODELS.items() for name in names},
    **dict.fromkeys([("scheme", "fp8s"), ("scheme", "fp8"), ("scheme", "fp8row")], "spinf-quant-fp8s"),
    **dict.fromkeys([("command", "calibrate"), ("command", "quantize")], "spinf-quant-fp8s"),
    ("pack source", "github"): "spinf-packs-github",
}
"""The distribution that brings what is often asked for, by kind and case-folded name (a family's or a `model_type`)."""

FAMILY_OF = {"spinf/pplx-decider-v1-27b-int4": "pplx"}
"""The family of models that are often asked for, and that no distribution brings."""


@attrs.frozen
class Registered(Generic[R]):
    """A record and where it comes from."""

    record: R
    plugin: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        """The distribution and its version, as messages and tables show them."""
        return f"{self.distribution} {self.version}".rstrip()


@attrs.frozen
class Plugin:
    """A plugin that was loaded."""

    name: str
    distribution: str
    version: str


@attrs.frozen
class Failure:
    """What a plugin could not bring, and why.

    Attributes:
        plugin: its entry point's name.
        distribution: that the entry point belongs to.
        version: of the distribution.
        cause: the original error, in one line.
        how_to_disable: what keeps the plugin from being loaded.
    """

    plugin: str
    distribution: str
    version: str
    cause: str
    how_to_disable: str

    def __str__(self) -> str:
        origin = f"{self.distribution} {self.version}".rstrip()
        return f"plugin {self.plugin!r} of {origin}: {self.cause}"


@attrs.frozen(kw_only=True)
class Plugins:
    """A composition, built by `spinf_core.plugins.discover`: all that core and the loaded plugins registered.

    Attributes:
        loaded: the plugins, core first.
        models: the served models with their provenance; `manifests` finds them by name.
        failures: what could not be loaded or registered.
        disabled: names of installed plugins that were left out.
    """

    loaded: tuple[Plugin, ...] = ()
    stacks: tuple[Registered[ModelStack], ...] = ()
    models: tuple[Registered[Manifest], ...] = ()
    manifests: Manifests = attrs.field(factory=Manifests)
    schemes: tuple[Registered[QuantScheme], ...] = ()
    embedders: tuple[Registered[MediaEmbedder], ...] = ()
    pack_sources: tuple[Registered[PackSource], ...] = ()
    frontends: tuple[Registered[Frontend], ...] = ()
    commands: tuple[Registered[Command], ...] = ()
    failures: tuple[Failure, ...] = ()
    disabled: tuple[str, ...] = ()

    def records(self) -> Iterator[Record]:
        """Every record that may carry settings."""
        groups = (self.stacks, self.schemes, self.embedders, self.pack_sources, self.frontends, self.commands)
        for group in groups:
            for item in group:
                yield item.record

    def stack_for(self, model_type: str) -> Registered[ModelStack]:
        """The stack that runs checkpoints of this `model_type`.

        Raises:
            SetupError: where none does.
        """
        known = {kind: item for item in self.stacks for kind in item.record.model_types}
        return self._find(known, model_type, "family", f"stack for model_type {model_type!r}")

    def stack_of_family(self, family: str) -> Registered[ModelStack]:
        """The stack of this family.

        Raises:
            SetupError: where none is installed.
        """
        known = {item.record.family: item for item in self.stacks}
        return self._find(known, family, "family", f"stack for the family {family!r}")

    def scheme(self, name: str) -> Registered[QuantScheme]:
        """The quantization scheme of this name.

        Raises:
            SetupError: where none is installed.
        """
        return self._find(_by_name(self.schemes), name, "scheme", f"quantization scheme {name!r}")

    def pack_source(self, scheme: str) -> Registered[PackSource]:
        """The source of packs for what stands before the colon.

        Raises:
            SetupError: where none is installed.
        """
        known = {item.record.scheme: item for item in self.pack_sources}
        return self._find(known, scheme, "pack source", f"pack source for {scheme}:")

    def frontend(self, name: str) -> Registered[Frontend]:
        """The server front end of this name.

        Raises:
            SetupError: where none is installed.
        """
        return self._find(_by_name(self.frontends), name, "frontend", f"front end {name!r}")

    def command(self, name: str) -> Registered[Command]:
        """The subcommand of this name.

        Raises:
            SetupError: where none is installed.
        """
        return self._find(_by_name(self.commands), name, "command", f"command {name!r}")

    def model(self, name: str) -> Registered[Manifest]:
        """The served model of this id or alias, in any case.

        Raises:
            SetupError: where there is none, or where two manifests claim the name.
        """
        found = self.manifests.find(name)
        if found is None:
            known = [known for manifest in self.manifests for known in (manifest.id, *manifest.aliases)]
            self._missing("model", f"model {name!r}", name, known)
        return next(item for item in self.models if item.record is found)

    def _find(self, known: Mapping[str, Registered[T]], name: str, kind: str, what: str) -> Registered[T]:
        return known.get(name) or self._missing(kind, what, name, known)

    def _missing(self, kind: str, what: str, name: str, known: Iterable[str]) -> NoReturn:
        known = sorted(known)
        sentence = f"no {what} is installed"
        if distribution := FIRST_PARTY.get((kind, name.casefold())):
            sentence += f"; pip install {distribution}"
        elif kind == "model" and (family := FAMILY_OF.get(name.casefold())):
            sentence += f"; it is of the family {family!r}, which no installed plugin runs"
        elif near := nearest(name, known):
            sentence += f"; the nearest is {near!r}"
        elif known:
            sentence += f"; there is {', '.join(known)}"
        if self.failures:
            sentence += ". It may be in a plugin that failed: " + "; ".join(map(str, self.failures))
        if self.disabled:
            sentence += f". Left out: {', '.join(self.disabled)}"
        raise SetupError(sentence)


def _by_name(items: Iterable[Registered[T]]) -> dict[str, Registered[T]]:
    return {item.record.name: item for item in items}


def load_factory(item: Registered[Any], factory: str | None = None) -> Any:
    """The object that a record's factory names, imported now; the attribute of a package may be one of its modules.

    Args:
        item: the record, with its provenance for the message.
        factory: another `"module:attribute"` of the same record, such as a stack's `convert`.

    Raises:
        SetupError: naming the record, its distribution and the cause.
    """
    module, _, attribute = (factory or item.record.factory).partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            if hasattr(found, "__path__") and not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        kind = type(item.record).__name__
        raise SetupError(
            f"{kind} {item.record.name!r} of {item.origin}: {module}:{attribute} cannot be imported: {cause_of(error)}"
        ) from error
    return found


def core_version() -> str:
    """The installed version of this distribution; `0` where the source runs without being installed."""
    try:
        return version("spinf-core")
    except PackageNotFoundError:
        return "0"


def cause_of(error: BaseException) -> str:
    """An exception in one line, its type first."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def composition_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """The table printed at start: what (model, family, scheme, …), which one, and its distribution and version."""
    return "\n".join(aligned(rows))
