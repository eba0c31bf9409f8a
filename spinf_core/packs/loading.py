"""The catalog at start: every source asked, what they bring checked, and the versions for the served model taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from spinf_core.errors import SetupError
from spinf_core.options import FeatureSettings
from spinf_core.packs.catalog import Catalog, Enabled, Skipped, version_key
from spinf_core.packs.evaluate import Evaluator
from spinf_core.packs.microlayer import WARNING, lock_fits
from spinf_core.packs.repository import Repository, RepositoryPack
from spinf_core.packs.sources import SourceContext
from spinf_core.registry import Plugins, load_factory
from spinf_core.settings import Settings

OFFICIAL_NAMESPACE = "spinf"

Note = Callable[[str], None]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.+)\Z", re.DOTALL)


def load_catalog(
    settings: Settings,
    plugins: Plugins,
    names: Iterable[str] | None,
    note: Note,
    *,
    official: bool | None = None,
) -> Catalog:
    """The packs of every source of the settings.

    Args:
        settings: `features.packs` and what goes with it.
        plugins: the composition.
        names: id and aliases of the served model; None takes the versions of every model.
        note: called with a line for each version that is left out, and for each thing to know.
        official: whether to load the official packs; None: as the settings say.

    Raises:
        SetupError: a source that was given cannot be had or holds errors, listed one a line; or two sources have one pack.
    """
    features = settings.features
    repositories: list[tuple[Repository, bool]] = []
    errors: list[str] = []
    for source in dict.fromkeys(features.packs):
        try:
            repositories.append((fetch(source, settings, plugins, note), False))
        except SetupError as error:
            errors.append(str(error))
    if features.official_packs if official is None else official:
        try:
            repositories.append((fetch(features.official_source, settings, plugins, note), True))
        except SetupError as error:
            # People who did not ask for these packs must not be kept from serving without them.
            note(f"the official packs are left out: {str(error).splitlines()[0]}")
    errors += _conflicts(repositories, features)
    if errors:
        raise SetupError("\n".join(errors))
    return _catalog([repository for repository, _ in repositories], names, note)


def fetch(source: str, settings: Settings, plugins: Plugins, note: Note) -> Repository:
    """The repository of one source: a folder, or `SCHEME:LOCATION`.

    Raises:
        SetupError: it cannot be had, or no plugin brings its scheme.
        PackError: it holds errors.
    """
    found = _SCHEME.match(source)
    scheme, location = (found[1], found[2]) if found else ("folder", source)
    item = plugins.pack_source(scheme)
    context = SourceContext(settings=settings.of_record(item.record), refresh=settings.features.packs_refresh, note=note)
    repository: Repository = load_factory(item)(context).packs(location)
    return repository


def _conflicts(repositories: list[tuple[Repository, bool]], features: FeatureSettings) -> list[str]:
    errors = []
    owner: dict[str, str] = {}
    for repository, official in repositories:
        for id_ in dict.fromkeys(pack.id for pack in repository.packs):
            namespace = id_.partition("/")[0]
            if namespace == OFFICIAL_NAMESPACE and not official and namespace not in features.packs_allow_namespace:
                errors.append(
                    f"pack {id_} of {repository.origin} is in the namespace {namespace}/, kept for the official packs; "
                    f"rename it, or pass --packs-allow-namespace {namespace}"
                )
            other = owner.setdefault(id_, repository.origin)
            if other != repository.origin:
                hint = " or pass --no-official-packs" if official else ""
                errors.append(f"pack {id_} is in two sources, {other} and {repository.origin}; leave one of them out{hint}")
    return errors


def _catalog(repositories: list[Repository], names: Iterable[str] | None, note: Note) -> Catalog:
    served = None if names is None else {name.casefold() for name in names}
    enabled: dict[str, list[Enabled]] = {}
    skipped = []
    for repository in repositories:
        for version in repository.packs:
            why = _why_not(version, served)
            if why is not None or version.pack is None:
                skipped.append(Skipped(id=version.id, version=version.version, source=repository.origin, why=why or ""))
                note(str(skipped[-1]))
                continue
            enabled.setdefault(version.id, []).append(_enabled(version, repository.origin))
            if version.pack.raw["decision"].get("micro_layer") and not lock_fits(version.pack.raw):
                note(f"pack {version.pack.key} of {repository.origin}: {WARNING}")
    ordered = {id_: tuple(sorted(some, key=lambda each: version_key(each.pack.version))) for id_, some in enabled.items()}
    return Catalog(ordered, tuple(skipped))


def _why_not(version: RepositoryPack, served: set[str] | None) -> str | None:
    if version.status == "coming_soon" or version.pack is None:
        return "it is announced and not available yet"
    if version.pack.draft:
        return "it is a draft: its constants are not fitted"
    if served is not None and version.model.casefold() not in served:
        return f"it is written for the model {version.model}"
    return None


def _enabled(version: RepositoryPack, origin: str) -> Enabled:
    assert version.pack is not None
    return Enabled(
        pack=version.pack,
        evaluator=Evaluator(version.pack),
        status=version.status,
        name=version.name or version.id,
        description=version.description,
        tags=version.tags,
        note=version.note,
        source=origin,
    )


def served_names(plugins: Plugins, model: str) -> frozenset[str]:
    """The id and aliases of a model, which a pack may name."""
    manifest = plugins.manifests.find(model)
    return frozenset({model.casefold()}) if manifest is None else manifest.names


def pack_rows(catalog: Catalog) -> tuple[tuple[str, str, str], ...]:
    """Rows of the start-up table: each enabled version and its source."""
    return tuple(("pack", each.pack.key, each.source) for versions in catalog.enabled.values() for each in versions)
