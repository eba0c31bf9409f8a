"""spinf's own cache on disk: folders that are either whole or absent, and locks between processes.

A folder is filled under a temporary name beside its place, synced, given a marker that lists every file's size, time
and SHA-256, and only then renamed into place. What a killed process leaves has a temporary name and is swept by the
next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spinf_core.errors import SetupError

MARKER = ".spinf-complete.json"
LOCK_TIMEOUT = 1800.0
"""Seconds to wait for another process that fetches the same thing."""

Say = Callable[[str], object]


def cache_root() -> Path:
    """`$SPINF_CACHE`, else `$XDG_CACHE_HOME/spinf`, else `~/.cache/spinf`."""
    if own := os.environ.get("SPINF_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "spinf"
    return Path.home() / ".cache" / "spinf"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(target: Path, say: Say, what: str) -> Iterator[None]:
    """Hold the lock of a place in the cache.

    The lock is the operating system's (through filelock), so it goes with its process, however that ends.

    Raises:
        SetupError: when another process holds it for longer than `LOCK_TIMEOUT`.
    """
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise SetupError("fetching a model needs filelock: pip install 'spinf-core[engine]'") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that fetches {what}")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT)
        except Timeout as error:
            raise SetupError(
                f"another process has held {path} for {LOCK_TIMEOUT:.0f} s, fetching {what}; end it, or wait and start again"
            ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A temporary folder on the file system of `target`, removed at the end; call it under `target`'s lock.

    Leftovers of processes that were killed are removed first: under the lock nobody uses them.
    """
    prefix = f".{target.name}.tmp-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(filled: Path, target: Path, note: dict[str, Any]) -> None:
    """Move a filled folder into place as a whole, with its marker.

    Args:
        filled: a folder inside `scratch(target)`.
        target: where it goes; what lies there is replaced.
        note: what the marker says of where it came from; `read_note` gives it back.
    """
    files = {}
    for path in sorted(path for path in filled.rglob("*") if path.is_file()):
        _sync(path)
        files[path.relative_to(filled).as_posix()] = {**_stamp(path), "sha256": file_sha256(path)}
    marker = filled / MARKER
    marker.write_text(json.dumps({"note": note, "files": files}, indent=1), encoding="utf-8")
    _sync(marker)
    _sync(filled)
    if target.exists():
        # A folder cannot be renamed onto one that is not empty; the old one goes away with the scratch folder.
        target.replace(filled.with_name("replaced"))
    filled.replace(target)
    _sync(target.parent)


def read_note(target: Path, *, thorough: bool = True) -> dict[str, Any] | None:
    """The note of a folder that is whole; None for one that is absent, broken, or changed since it was published.

    Sizes and times are compared. A file whose time alone differs (a copied cache) is hashed where `thorough`, and its
    new time is noted; else it counts as whole.
    """
    marker = target / MARKER
    try:
        content = json.loads(marker.read_bytes())
        note: dict[str, Any] = content["note"]
        restamped = False
        for name, known in content["files"].items():
            stamp = _stamp(target / name)
            if stamp["size"] != known["size"]:
                return None
            if thorough and stamp["mtime_ns"] != known["mtime_ns"]:
                if file_sha256(target / name) != known["sha256"]:
                    return None
                known.update(stamp)
                restamped = True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if restamped:
        with contextlib.suppress(OSError):
            write_atomically(marker, json.dumps(content, indent=1))
    return note


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file; a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder to sync it
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
