"""Layered settings: flags, then `SPINF_*` environment, then a TOML file, then the model's manifest, then defaults.

Every value remembers where it came from, so that an error can say it. Which settings exist is written in
`spinf_core.options`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from spinf_core.errors import SetupError
from spinf_core.limits import Limits
from spinf_core.manifests import Manifest
from spinf_core.options import TABLES, EngineSettings, FeatureSettings, Option, ServerSettings, options
from spinf_core.records import Record
from spinf_core.strict import FALSE, TRUE, Mismatch, build, convert, hints, parse, suggestion

if TYPE_CHECKING:
    from spinf_core.registry import Plugins

__all__ = ["EngineSettings", "FeatureSettings", "Limits", "ServerSettings", "Settings", "load_settings"]

# Read elsewhere: by discovery and the command line, by the checkpoint cache, by the client.
OTHER_VARIABLES = (
    "SPINF_CONFIG",
    "SPINF_PLUGINS",
    "SPINF_DISABLED_PLUGINS",
    "SPINF_STRICT_PLUGINS",
    "SPINF_MANIFEST_DIRS",
    "SPINF_CACHE",
    "SPINF_PACKS_CACHE",
    "SPINF_API_KEY",
    "SPINF_API_URL",
)


@attrs.frozen(kw_only=True)
class Settings:
    """Settings, layered.

    Attributes:
        origins: for each `table.name` that is not a default, where its value came from: a flag, a variable, the file,
            or a manifest.
        plugin_tables: the file's `[plugin.NAME]` tables as they stand there.
        variables: the `SPINF_*` environment.
        file: the settings file, or None.
        warnings: one line for each `SPINF_*` variable that nothing reads.
    """

    engine: EngineSettings = attrs.field(factory=EngineSettings)
    server: ServerSettings = attrs.field(factory=ServerSettings)
    features: FeatureSettings = attrs.field(factory=FeatureSettings)
    limits: Limits = attrs.field(factory=Limits)
    origins: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    plugin_tables: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, repr=False)
    variables: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    file: Path | None = None
    warnings: tuple[str, ...] = ()

    def origin(self, key: str) -> str:
        """Where the value of `table.name` came from."""
        return self.origins.get(key, "default")

    def of_record(self, record: Record) -> Any:
        """The record's settings, read from `[plugin.NAME]` and `SPINF_NAME_*`; None where it takes none.

        Raises:
            SetupError: naming the key or variable, what was expected, and the nearest known name.
        """
        if record.settings is None:
            return None
        table = dict(self.plugin_tables.get(record.name, {}))
        where = f"{self.file}: [plugin.{record.name}]" if table else f"[plugin.{record.name}]"
        for name, hint in hints(record.settings).items():
            variable = variable_of(record, name)
            if text := self.variables.get(variable):
                table[name] = _parse(hint, text, f"{variable}={text!r}")
        return build(record.settings, table, lambda key, sentence: SetupError(f"{where} {key}: {sentence}"))

    def with_manifest(self, manifest: Manifest) -> Settings:
        """These settings with the manifest's values wherever nothing above it has spoken."""
        changes: dict[str, dict[str, Any]] = {"engine": {}, "limits": {}}
        origins = dict(self.origins)
        for key, value in _of_manifest(manifest).items():
            if key not in self.origins:
                table, name = key.split(".")
                changes[table][name] = value
                origins[key] = f"manifest {manifest.id}"
        return attrs.evolve(
            self,
            engine=attrs.evolve(self.engine, **changes["engine"]),
            limits=attrs.evolve(self.limits, **changes["limits"]),
            origins=origins,
        )


def load_settings(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    manifest: Manifest | None = None,
    plugins: Plugins | None = None,
) -> Settings:
    """Read every layer.

    Args:
        flags: values by `table.name`; texts are read as on the command line, other values must have the setting's type.
        environ: the process's environment unless given.
        file: a TOML file with the tables `[engine] [server] [features] [limits]` and `[plugin.NAME]`.
        manifest: the model's.
        plugins: a composition; with it, tables and variables that nothing reads are told.

    Raises:
        SetupError: naming what is wrong where, what was expected, and the nearest known name.
    """
    environ = os.environ if environ is None else environ
    variables = {name: value for name, value in environ.items() if name.startswith("SPINF_")}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    contents, plugin_tables = _read_file(file) if file is not None else ({}, {})
    layers = (
        _from_file(file, contents),
        _from_environment(variables),
        _from_flags(flags or {}),
    )
    for layer in layers:
        for key, value, origin in layer:
            values[key], origins[key] = value, origin
    built = {
        table: cls(**{name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{table}.")})
        for table, cls in TABLES.items()
    }
    settings = Settings(
        **built,  # type: ignore[arg-type]
        origins=origins,
        plugin_tables=plugin_tables,
        variables=variables,
        file=file,
        warnings=unknown_variables(variables, plugins) if plugins is not None else (),
    )
    if plugins is not None:
        _check_plugin_tables(settings, plugins)
    return settings if manifest is None else settings.with_manifest(manifest)


def settings_file(flag: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The settings file: `--config`, or `SPINF_CONFIG`, or none."""
    named = flag or environ.get("SPINF_CONFIG")
    return Path(named).expanduser() if named else None


def variable_of(record: Record, field: str) -> str:
    """The environment variable of a field of a record's settings."""
    return re.sub(r"[^A-Z0-9]", "_", f"SPINF_{record.name}_{field}".upper())


def unknown_variables(variables: Mapping[str, str], plugins: Plugins) -> tuple[str, ...]:
    """One line for each `SPINF_*` variable that neither core nor a record's settings read."""
    known = {option.env for option in options()} | set(OTHER_VARIABLES)
    for record in plugins.records():
        if record.settings is not None:
            known |= {variable_of(record, field) for field in hints(record.settings)}
    return tuple(
        f"{name} is set, and nothing reads it{suggestion(name, known)}" for name in sorted(variables) if name not in known
    )


Layer = Iterator[tuple[str, Any, str]]


def _read_file(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's tables, and the tables inside `[plugin]`."""
    try:
        contents = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"settings file {file}: {error}") from error
    plugin_tables = contents.pop("plugin", {})
    for name, table in contents.items():
        if name not in TABLES:
            kind = "table" if isinstance(table, dict) else "key"
            raise SetupError(f"{file}: unknown {kind} {name!r}{suggestion(name, [*TABLES, 'plugin'])}")
        if not isinstance(table, dict):
            raise SetupError(f"{file}: {name}: expected a table, got {table!r}")
    if not isinstance(plugin_tables, dict) or not all(isinstance(table, dict) for table in plugin_tables.values()):
        raise SetupError(f"{file}: plugin: expected tables, [plugin.NAME]")
    return contents, plugin_tables


def _from_file(file: Path | None, contents: Mapping[str, Mapping[str, Any]]) -> Layer:
    for table, values in contents.items():
        known = {option.name: option for option in options(table)}
        for name, value in values.items():
            if name not in known:
                raise SetupError(f"{file}: [{table}] has no key {name!r}{suggestion(name, known)}")
            shown = "…" if known[name].secret else repr(value)
            yield _checked(known[name], value, f"{file}: [{table}] {name} = {shown}")


def _from_environment(variables: Mapping[str, str]) -> Layer:
    """An empty variable counts as unset. Where a switch and a list share one, each takes the words that are its own."""
    claimed = Counter(option.env for option in options())
    for option in options():
        text = variables.get(option.env, "").strip()
        if not text:
            continue
        is_switch_word = text.lower() in TRUE | FALSE
        if claimed[option.env] > 1 and is_switch_word != (option.hint is bool):
            continue
        shown = "…" if option.secret else repr(text)
        yield _checked(option, text, f"{option.env}={shown}", option.env)


def _from_flags(flags: Mapping[str, Any]) -> Layer:
    known = {option.key: option for option in options()}
    for key, value in flags.items():
        if key not in known:
            raise SetupError(f"there is no setting {key!r}{suggestion(key, known)}")
        option = known[key]
        flag = next(iter(option.flags), key)
        shown = "…" if option.secret else repr(value)
        yield _checked(option, value, f"{flag} {shown}", flag)


def _checked(option: Option, value: Any, where: str, origin: str = "") -> tuple[str, Any, str]:
    """A value of a setting, read and checked: `(key, value, origin)`."""
    try:
        read = parse(option.hint, value) if origin and isinstance(value, str) else convert(option.hint, value)
    except Mismatch as error:
        raise SetupError(f"{where}: {error}") from None
    least, most = option.metadata.get("least"), option.metadata.get("most")
    if least is not None and read is not None and read < least:
        raise SetupError(f"{where}: expected at least {least}")
    if most is not None and read is not None and read > most:
        raise SetupError(f"{where}: expected at most {most}")
    return option.key, read, origin or where.partition(" = ")[0]


def _parse(hint: Any, text: str, where: str) -> Any:
    try:
        return parse(hint, text)
    except Mismatch as error:
        raise SetupError(f"{where}: {error}") from None


def _of_manifest(manifest: Manifest) -> dict[str, Any]:
    """What a manifest says about settings, by `table.name`."""
    values = {
        "engine.quant": manifest.quant.default or None,
        "engine.token_budget": manifest.limits.token_budget,
        "engine.max_tokens": manifest.limits.max_tokens,
        **{f"limits.{name}": value for name, value in manifest.limits.request.items()},
    }
    return {key: value for key, value in values.items() if value is not None}


def _check_plugin_tables(settings: Settings, plugins: Plugins) -> None:
    """Refuse `[plugin.NAME]` tables of nobody, and those that their records would refuse."""
    takers = [record for record in plugins.records() if record.settings is not None]
    for name in settings.plugin_tables:
        named = [record for record in takers if record.name == name]
        if not named:
            near = suggestion(name, {record.name for record in takers})
            raise SetupError(f"{settings.file}: [plugin.{name}]: nothing installed takes these settings{near}")
        for record in named:
            settings.of_record(record)
