"""A commit's archive, unpacked safely: looked through whole before anything of it is written."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath

MAX_BYTES = 512 * 2**20
MAX_MEMBERS = 100_000


class BadArchive(Exception):
    """An archive that is cut short or holds what it may not; the message says which member and what."""


def unpack(archive: Path, target: Path) -> None:
    """Unpack a gzipped tar as GitHub makes them, without its outermost folder.

    Args:
        archive: the file. A `.tar` is written beside it for a while.
        target: an empty folder.

    Raises:
        BadArchive: nothing was written to `target`.
    """
    plain = archive.with_suffix(".tar")
    try:
        _decompress(archive, plain)
        with tarfile.open(plain, "r:") as tar:
            members = [(member, _place(member)) for member in _members(tar)]
            for member, place in members:
                if place is None or not member.isreg():
                    continue
                path = target / place
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with path.open("xb") as file:
                    while chunk := content.read(2**20):
                        file.write(chunk)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise BadArchive(f"it is not a whole tar archive: {error}") from error
    except FileExistsError as error:
        raise BadArchive(f"it holds {Path(str(error.filename)).name} twice, or as a file and a folder") from error
    except NotADirectoryError as error:
        raise BadArchive(f"it holds {Path(str(error.filename)).name} as a file and a folder") from error
    finally:
        plain.unlink(missing_ok=True)


def _decompress(archive: Path, plain: Path) -> None:
    """To the end, where gzip keeps a checksum: a tar that is cut between two members would look whole."""
    size = 0
    try:
        with gzip.open(archive) as compressed, plain.open("wb") as file:
            while chunk := compressed.read(2**20):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise BadArchive(f"it unpacks to more than {MAX_BYTES // 2**20} MiB")
                file.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadArchive(f"it is cut short or damaged: {error}") from error


def _members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members = []
    for member in tar:
        members.append(member)
        if len(members) > MAX_MEMBERS:
            raise BadArchive(f"it holds more than {MAX_MEMBERS} files")
    return members


def _place(member: tarfile.TarInfo) -> PurePosixPath | None:
    """Where a member belongs, without the outermost folder; None for that folder itself."""
    path = PurePosixPath(member.name)
    if member.issym() or member.islnk():
        raise BadArchive(f"{member.name} is a link to {member.linkname}; a repository of packs holds plain files")
    if not (member.isreg() or member.isdir()):
        raise BadArchive(f"{member.name} is neither a file nor a folder")
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in path.parts[0] or "\0" in member.name:
        raise BadArchive(f"{member.name} leads out of the archive")
    inner = path.parts[1:]
    if not inner and member.isreg():
        raise BadArchive(f"{member.name} stands outside the archive's folder")
    return PurePosixPath(*inner) if inner else None
