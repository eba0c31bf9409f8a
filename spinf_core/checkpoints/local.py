"""Checkpoints in a folder of the user's: their revision is a hash of their content."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from spinf_core.checkpoints.cache import Say, file_sha256, write_atomically
from spinf_core.checkpoints.progress import megabytes

CHECKPOINT_FILES = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt")
"""The files that make a checkpoint: what is hashed in a local folder and fetched from the Hub, top level only."""


def content_hash(folder: Path, cache: Path, say: Say) -> str:
    """SHA-256 over the names and bytes of a folder's weights, configuration and tokenizer files, in hex.

    It depends neither on where the folder lies nor on other files in it. Hashing takes about a second per gigabyte, so
    each file's hash is kept in spinf's cache (never in the user's folder) beside its size and modification time, and is
    computed again when one of these differs. A file that is changed with its size and time set back is not noticed.
    """
    folder = folder.resolve()
    memory = cache / "local" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"
    known = _read_memory(memory)
    files: dict[str, Any] = {}
    for path in sorted({path for pattern in CHECKPOINT_FILES for path in folder.glob(pattern) if path.is_file()}):
        # The stamp is taken first: a change while the file is hashed shows at the next start.
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = known.get(path.name)
        if not (isinstance(entry, dict) and entry.get("stamp") == stamp):
            if path.suffix == ".safetensors":
                say(f"hashing {path.name} ({megabytes(status.st_size)})")
            entry = {"stamp": stamp, "sha256": file_sha256(path)}
        files[path.name] = entry
    if files != known:
        # A cache that cannot be written costs time at the next start, nothing else.
        with contextlib.suppress(OSError):
            write_atomically(memory, json.dumps(files, indent=1))
    digest = hashlib.sha256()
    for name, entry in sorted(files.items()):
        digest.update(f"{name}\0{entry['sha256']}\n".encode())
    return digest.hexdigest()


def _read_memory(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
