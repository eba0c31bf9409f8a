"""Discovery and composition of plugins: entry points in, a frozen `Plugins` out.

There is no global manager. The command line and the engine call `discover`; an application calls it with plugins of its
own, or builds several compositions side by side. A plugin that fails is left out, recorded with its cause, and stops
nothing else.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attrs
import pluggy

from spinf_core import builtin
from spinf_core.errors import SetupError
from spinf_core.hookspecs import PROJECT, SpinfSpecs
from spinf_core.manifests import Manifest, Manifests, load_manifest, manifest_folders
from spinf_core.records import API, Command, Frontend, MediaEmbedder, ModelStack, PackSource, QuantScheme, Record
from spinf_core.registry import (
    Failure,
    Plugin,
    Plugins,
    Registered,
    cause_of,
    composition_table,
    core_version,
    load_factory,
)
from spinf_core.strict import TRUE, suggestion

__all__ = ["Failure", "Plugin", "Plugins", "Registered", "composition_table", "discover", "load_factory"]

GROUP = "spinf"
CORE = "core"
APPLICATION = "application"
MANIFEST_DIRS = "SPINF_MANIFEST_DIRS"

# hook -> (the field of `Plugins` that its records fill, their class)
HOOKS: dict[str, tuple[str, type]] = {
    "spinf_model_stacks": ("stacks", ModelStack),
    "spinf_manifests": ("models", Manifest),
    "spinf_quant_schemes": ("schemes", QuantScheme),
    "spinf_media_embedders": ("embedders", MediaEmbedder),
    "spinf_pack_sources": ("pack_sources", PackSource),
    "spinf_frontends": ("frontends", Frontend),
    "spinf_commands": ("commands", Command),
}


@attrs.frozen
class _Candidate:
    """A plugin that could be loaded."""

    plugin: Plugin
    load: Callable[[], Any]

    def called(self, names: Iterable[str]) -> bool:
        """Whether one of the names means this plugin, by its own name or by its distribution's."""
        return bool({self.plugin.name, _normalized(self.plugin.distribution)} & {*names, *map(_normalized, names)})


def discover(
    disabled: Sequence[str] = (),
    only: Sequence[str] | None = None,
    strict: bool = False,
    extra: Sequence[tuple[str, Any]] = (),
    environ: Mapping[str, str] | None = None,
) -> Plugins:
    """Scan the installed distributions once and compose what core and the plugins register.

    Args:
        disabled: plugins to leave out, by name or distribution; `SPINF_DISABLED_PLUGINS=a,b` adds to them.
        only: the plugins to load, all others being left out; None: `SPINF_PLUGINS=a,b`, or every installed one.
        strict: raise where anything failed; so does `SPINF_STRICT_PLUGINS=1`.
        extra: plugins of the application itself, `(name, module or object)`; they are always loaded.
        environ: what to read instead of the process's environment.

    Raises:
        SetupError: in strict mode, naming every failure.
    """
    environ = os.environ if environ is None else environ
    disabled = [*disabled, *_names(environ.get("SPINF_DISABLED_PLUGINS", ""))]
    if only is None and environ.get("SPINF_PLUGINS", "").strip():
        only = _names(environ["SPINF_PLUGINS"])

    composer = _Composer()
    composer.register(Plugin(CORE, "spinf-core", core_version()), lambda: builtin)
    installed = list(_installed())
    chosen = [c for c in installed if not c.called(disabled) and (only is None or c.called(only))]
    chosen += [_Candidate(Plugin(name, APPLICATION, ""), partial(_given, module)) for name, module in extra]
    for name in only or ():
        if name != CORE and not any(candidate.called([name]) for candidate in installed):
            near = suggestion(name, [candidate.plugin.name for candidate in installed])
            how = "ask for installed plugins alone"
            composer.fail(Plugin(name, "SPINF_PLUGINS", ""), f"no such plugin is installed{near}", how)
    composer.load(sorted(chosen, key=lambda candidate: (candidate.plugin.name, candidate.plugin.distribution)))
    composer.drain()
    composer.add_manifest_folders(manifest_folders(environ))
    plugins = composer.freeze(disabled=tuple(sorted(c.plugin.name for c in installed if c not in chosen)))
    if plugins.failures and (strict or environ.get("SPINF_STRICT_PLUGINS", "").strip().lower() in TRUE):
        raise SetupError("; ".join(map(str, plugins.failures)))
    return plugins


def _installed() -> Iterator[_Candidate]:
    """The entry points of the group. A distribution found twice, as an editable install may be, counts once."""
    seen = set()
    for entry in entry_points(group=GROUP):
        plugin = Plugin(entry.name, entry.dist.name if entry.dist else "?", entry.dist.version if entry.dist else "")
        if (plugin, entry.value) not in seen:
            seen.add((plugin, entry.value))
            yield _Candidate(plugin, entry.load)


def _given(module: Any) -> Any:
    return module


class _Composer:
    """Collects records and failures until they are frozen."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(SpinfSpecs)
        self._plugins: dict[str, Plugin] = {}
        self._items: dict[str, list[Registered[Any]]] = {field: [] for field, _ in HOOKS.values()}
        self._failures: list[Failure] = []

    def fail(self, plugin: Plugin, cause: str, how_to_disable: str = "") -> None:
        """Record a failure."""
        how = how_to_disable or _how_to_disable(plugin)
        self._failures.append(Failure(plugin.name, plugin.distribution, plugin.version, cause, how))

    def load(self, candidates: Iterable[_Candidate]) -> None:
        """Load and register plugins; names that two distributions claim are loaded from neither."""
        by_name: dict[str, list[_Candidate]] = defaultdict(list)
        for candidate in candidates:
            by_name[candidate.plugin.name].append(candidate)
        for name, same in by_name.items():
            if len(same) == 1 and name not in self._plugins:
                self.register(same[0].plugin, same[0].load)
                continue
            for candidate in same:
                others = [c.plugin for c in same if c is not candidate] or [self._plugins[name]]
                claims = ", ".join(f"{plugin.distribution} {plugin.version}".rstrip() for plugin in others)
                how = f"uninstall one of them, or --no-plugin {candidate.plugin.distribution}"
                self.fail(candidate.plugin, f"{claims} has a plugin of this name too", how)

    def register(self, plugin: Plugin, load: Callable[[], Any]) -> None:
        """Load one plugin, guarded: whatever it raises is its own failure."""
        try:
            module = load()
            self._manager.register(module, name=plugin.name)
            self._manager.check_pending()
            if module is None or not self._manager.get_hookcallers(module):
                raise LookupError("implements no hook; mark its functions with spinf_core.hookimpl")
        except (Exception, SystemExit) as error:
            if self._manager.has_plugin(plugin.name):
                self._manager.unregister(name=plugin.name)
            self.fail(plugin, _explain(error))
        else:
            self._plugins[plugin.name] = plugin

    def drain(self) -> None:
        """Call every implementation on its own, in the order of the plugins' names, core first."""
        order = {name: index for index, name in enumerate(self._plugins)}
        for hook, (field, cls) in HOOKS.items():
            implementations = getattr(self._manager.hook, hook).get_hookimpls()
            for implementation in sorted(implementations, key=lambda found: order[found.plugin_name]):
                plugin = self._plugins[implementation.plugin_name]
                try:
                    if implementation.hookwrapper or implementation.wrapper:
                        raise TypeError("hooks of spinf cannot be wrapped")
                    records = list(implementation.function())
                except (Exception, SystemExit) as error:
                    self.fail(plugin, f"{hook}: {cause_of(error)}")
                    continue
                for record in records:
                    self._add(plugin, hook, field, cls, record)

    def add_manifest_folders(self, folders: Iterable[Path]) -> None:
        """Add the manifests of folders that the user named."""
        for folder in folders:
            source = Plugin(MANIFEST_DIRS, str(folder), "")
            if not folder.is_dir():
                self.fail(source, "is not a folder")
            for path in sorted(folder.glob("*.toml")):
                try:
                    manifest = load_manifest(path)
                except SetupError as error:
                    self.fail(source, str(error))
                else:
                    self._items["models"].append(Registered(manifest, source.name, str(path), ""))

    def _add(self, plugin: Plugin, hook: str, field: str, cls: type, record: object) -> None:
        """Check one record and keep it, with its provenance."""
        try:
            if cls is Manifest and isinstance(record, Path):
                record = load_manifest(record)
            if not isinstance(record, cls):
                raise SetupError(f"expected {cls.__name__} records, got {record!r}")
            if isinstance(record, Record):
                _check(record)
        except SetupError as error:
            self.fail(plugin, f"{hook}: {error}")
        else:
            self._items[field].append(Registered(record, plugin.name, plugin.distribution, plugin.version))

    def freeze(self, disabled: tuple[str, ...]) -> Plugins:
        """Refuse what is claimed twice and freeze the rest."""
        refused = {field: self._refuse_claimed_twice(field) for field, _ in HOOKS.values()}
        models = tuple(sorted(self._items["models"], key=lambda item: item.record.id))
        self._items["models"] = list(models)
        return Plugins(
            loaded=tuple(self._plugins.values()),
            manifests=Manifests(tuple(item.record for item in models), refused["models"]),
            failures=tuple(self._failures),
            disabled=disabled,
            **{field: tuple(items) for field, items in self._items.items()},
        )

    def _refuse_claimed_twice(self, field: str) -> dict[str, str]:
        """Drop the records whose name, or another claim, is not theirs alone. Core's own always stay.

        Returns:
            for each contested claim, a sentence that names every claimant.
        """
        claimants: dict[tuple[str, str], list[Registered[Any]]] = defaultdict(list)
        for item in self._items[field]:
            for claim in claims(item.record):
                claimants[claim].append(item)
        contested = {claim: items for claim, items in claimants.items() if len(items) > 1}
        sentences: dict[str, str] = {}
        dropped: list[Registered[Any]] = []
        for (what, name), items in contested.items():
            origins = " and ".join(f"{item.origin} (plugin {item.plugin!r})" for item in items)
            sentence = f"{what} {name!r} is claimed by {origins}; disable one of them"
            sentences[name] = sentence
            for item in items:
                if item.plugin != CORE and not any(item is other for other in dropped):
                    dropped.append(item)
                    self.fail(Plugin(item.plugin, item.distribution, item.version), sentence)
        self._items[field] = [item for item in self._items[field] if not any(item is other for other in dropped)]
        return sentences


def claims(record: Record | Manifest) -> list[tuple[str, str]]:
    """What a record alone may be called by within its hook, as (what it is, its name), each once."""
    if isinstance(record, Manifest):
        return [("model", name) for name in sorted(record.names)]
    claimed = [(type(record).__name__, record.name)]
    if isinstance(record, ModelStack):
        claimed += [("family", record.family), *(("model_type", kind) for kind in record.model_types)]
    if isinstance(record, MediaEmbedder):
        claimed += [(f"{record.kind} embedder of the family", family) for family in record.families]
    if isinstance(record, PackSource):
        claimed.append(("pack source", f"{record.scheme}:"))
    return list(dict.fromkeys(claimed))


def _how_to_disable(plugin: Plugin) -> str:
    if plugin.name == MANIFEST_DIRS:
        return f"take {plugin.distribution} out of {MANIFEST_DIRS}"
    if plugin.distribution == APPLICATION:
        return "leave it out of what the application passes to discover"
    return f"--no-plugin {plugin.name}, or SPINF_DISABLED_PLUGINS={plugin.name}"


def _check(record: Record) -> None:
    kind = f"{type(record).__name__} {record.name!r}"
    if record.api != API:
        raise SetupError(
            f"{kind} implements version {record.api} of the plugin interface, and this spinf-core speaks version {API};"
            " install releases that go together"
        )
    if record.settings is not None and not attrs.has(record.settings):
        raise SetupError(f"{kind}: settings is {record.settings!r}, not an attrs class")


def _explain(error: BaseException) -> str:
    """The cause of a failed load; for a misspelled hook with the nearest one."""
    cause = cause_of(error)
    if isinstance(error, pluggy.PluginValidationError) and (found := re.search(r"unknown hook '(\w+)'", cause)):
        return f"unknown hook {found[1]!r}{suggestion(found[1], HOOKS)}"
    return cause


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _normalized(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
