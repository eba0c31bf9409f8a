"""A repository of packs: a folder with `prompt-packs.json`, or without one, whatever pack files are in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import attrs

from spinf_core.packs.checks import Checks, shown
from spinf_core.packs.file import MAX_BYTES, Pack, PackError, load_json, pack_of, read_pack
from spinf_core.packs.validate import ID

MANIFEST = "prompt-packs.json"
FORMAT = 1

Status = Literal["available", "deprecated", "coming_soon"]
_STATUSES = ("available", "deprecated", "coming_soon")
_REPOSITORY = ("format", "namespace", "name", "homepage", "license", "packs")
_PACK = ("id", "name", "description", "tags", "media", "parameters", "readme", "samples", "versions")
_VERSION = ("version", "file", "model", "status", "fixture", "note")


@attrs.frozen(kw_only=True, eq=False)
class RepositoryPack:
    """One version of a pack in a repository.

    Attributes:
        id, version, model: as the manifest or the file says.
        status: `coming_soon` for one that is announced.
        pack: what its file holds; None where it is announced only.
        file: the file's place in the repository. fixture: the place of its golden fixture.
        name, description, tags, note: for people.
    """

    id: str
    version: str
    model: str
    status: Status
    pack: Pack | None
    file: str = ""
    fixture: Path | None = None
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


@attrs.frozen(kw_only=True, eq=False)
class Repository:
    """The packs of one source.

    Attributes:
        origin: what messages and listings call it.
        packs: every version.
    """

    origin: str
    packs: tuple[RepositoryPack, ...]


def read_repository(folder: Path, origin: str, under: str = "") -> Repository:
    """Read a repository.

    Args:
        folder: that holds it. origin: what to call it.
        under: a folder of it, or a single pack file, that is meant instead of the whole.

    Raises:
        PackError: with every problem of the manifest and of every file.
    """
    place = folder / under
    if not _inside(place, folder) or not place.exists():
        raise PackError(origin, (f"has no {under!r}",))
    if place.is_file():
        pack = read_pack(place)
        return Repository(origin=origin, packs=(_plain(pack, place.name),))
    if (place / MANIFEST).is_file():
        return _from_manifest(place, origin)
    return _discovered(place, origin)


def _from_manifest(folder: Path, origin: str) -> Repository:
    manifest = load_json(folder / MANIFEST)
    found = Checks()
    packs: list[RepositoryPack] = []
    if not isinstance(manifest, Mapping):
        raise PackError(origin, (f"{MANIFEST} must hold an object, not {shown(manifest)}",))
    found.known(manifest, _REPOSITORY, "")
    if manifest.get("format") != FORMAT or isinstance(manifest.get("format"), bool):
        found.add("format", f"must be {FORMAT}, the format that this spinf reads, not {shown(manifest.get('format'))}")
    namespace = found.text(manifest, "namespace", "") or ""
    entries = manifest.get("packs")
    if not isinstance(entries, list):
        found.add("packs", f"must be a list, not {shown(entries)}")
        entries = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            packs += _versions(found, entry, f"packs.{number}", namespace, folder)
        else:
            found.add(f"packs.{number}", f"must be an object, not {shown(entry)}")
    seen: set[tuple[str, str]] = set()
    for pack in packs:
        if (pack.id, pack.version) in seen:
            found.add("packs", f"has pack {pack.id} {pack.version} twice")
        seen.add((pack.id, pack.version))
    if found.problems:
        raise PackError(f"{origin}: {MANIFEST}", tuple(found.problems))
    return Repository(origin=origin, packs=tuple(packs))


def _versions(found: Checks, entry: Mapping[str, Any], where: str, namespace: str, folder: Path) -> Iterator[RepositoryPack]:
    found.known(entry, _PACK, where)
    id_ = found.text(entry, "id", where)
    if id_ is None:
        return
    id_ = id_ if "/" in id_ else f"{namespace}/{id_}"
    where = f"pack {id_}"
    if not ID.match(id_):
        found.add(where, "its id is not a name like namespace/name in lower case")
    elif namespace and id_.partition("/")[0] != namespace:
        found.add(where, f"is not in the repository's namespace {namespace}")
    people: dict[str, Any] = {
        "name": found.text(entry, "name", where, required=False) or id_,
        "description": found.text(entry, "description", where, required=False, empty=True) or "",
        "tags": tuple(found.texts(entry, "tags", where, required=False) or ()),
    }
    versions = entry.get("versions")
    if not isinstance(versions, list) or not versions:
        found.add(f"{where}.versions", f"must be a list of at least one version, not {shown(versions)}")
        return
    for number, version in enumerate(versions):
        if not isinstance(version, Mapping):
            found.add(f"{where}.versions.{number}", f"must be an object, not {shown(version)}")
        elif (one := _version(found, version, f"{where}.versions.{number}", id_, folder, people)) is not None:
            yield one


def _version(
    found: Checks, version: Mapping[str, Any], where: str, id_: str, folder: Path, people: Mapping[str, Any]
) -> RepositoryPack | None:
    found.known(version, _VERSION, where)
    number = found.text(version, "version", where)
    model = found.text(version, "model", where)
    status = version.get("status", "available")
    if status not in _STATUSES:
        found.add(f"{where}.status", f"must be one of {', '.join(_STATUSES)}, not {shown(status)}")
    note = found.text(version, "note", where, required=False, empty=True) or ""
    file = found.text(version, "file", where, required=status != "coming_soon")
    fixture = found.text(version, "fixture", where, required=False)
    fixture_at = _file(found, fixture, f"{where}.fixture", folder)
    path = _file(found, file, f"{where}.file", folder, missing=status == "coming_soon")
    if number is None or model is None or status not in _STATUSES:
        return None
    pack = None
    if path is not None:
        try:
            pack = read_pack(path)
        except PackError as error:
            found.problems += [f"{file}: {problem}" for problem in error.problems]
            return None
        for name, said, is_ in (("id", id_, pack.id), ("version", number, pack.version), ("model", model, pack.model)):
            if said != is_ and not (name == "model" and pack.draft):
                found.add(f"{where}.{name}", f"is {said} in {MANIFEST} and {is_ or 'missing'} in {file}")
    return RepositoryPack(
        id=id_,
        version=number,
        model=model,
        status=status,
        pack=pack,
        file=file or "",
        fixture=fixture_at,
        note=note,
        **people,
    )


def _file(found: Checks, name: str | None, where: str, folder: Path, missing: bool = False) -> Path | None:
    """A file that the manifest names, which must lie inside the repository."""
    if name is None:
        return None
    path = folder / name
    if PurePosixPath(name).is_absolute() or not _inside(path, folder):
        found.add(where, f"{shown(name)} leaves the repository")
    elif path.is_file():
        return path
    elif not missing:
        found.add(where, f"{shown(name)} is not there")
    return None


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _discovered(folder: Path, origin: str) -> Repository:
    """The pack files of a folder: JSON with `pack` and `scoring`."""
    packs: list[RepositoryPack] = []
    problems: list[str] = []
    for path in sorted(folder.rglob("*.json")):
        place = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in path.relative_to(folder).parts) or not _inside(path, folder):
            continue
        if path.stat().st_size > MAX_BYTES:
            problems.append(f"{place}: is larger than {MAX_BYTES // 2**20} MiB, the most that a pack may be")
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError):
            continue  # some other file
        if not isinstance(value, Mapping) or not {"pack", "scoring"} <= value.keys():
            continue
        try:
            packs.append(_plain(pack_of(place, value), place))
        except PackError as error:
            problems += [f"{place}: {problem}" for problem in error.problems]
    keys = [(pack.id, pack.version) for pack in packs]
    problems += [
        f"pack {id_} {version} is there twice" for id_, version in dict.fromkeys(keys) if keys.count((id_, version)) > 1
    ]
    if not packs and not problems:
        problems.append(f"has neither {MANIFEST} nor a file with the fields pack and scoring")
    if problems:
        raise PackError(origin, tuple(problems))
    return Repository(origin=origin, packs=tuple(packs))


def _plain(pack: Pack, file: str) -> RepositoryPack:
    name = pack.raw.get("name")
    return RepositoryPack(
        id=pack.id,
        version=pack.version,
        model=pack.model,
        status="available",
        pack=pack,
        file=file,
        name=name if isinstance(name, str) and name else pack.id,
        description=text if isinstance(text := pack.raw.get("description"), str) else "",
    )
