"""Checkpoints on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from spinf_core.checkpoints.cache import Say
from spinf_core.checkpoints.integrity import check_folder, hub_mend
from spinf_core.checkpoints.local import CHECKPOINT_FILES
from spinf_core.errors import SetupError

_COMMIT = re.compile(r"[0-9a-f]{40}")


def snapshot(repo: str, revision: str, cache: Path | None, say: Say) -> tuple[Path, str]:
    """Fetch what is missing of a repository and return its folder and commit.

    huggingface_hub's own cache and variables (`HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_ENDPOINT`)
    apply. A commit that is whole in the cache is used without asking the Hub.

    Args:
        repo: `org/name`.
        revision: commit, tag or branch; empty for the main branch.
        cache: a cache folder instead of the library's.
        say: told when a fetch begins; the library's own bars go to stderr, on a terminal only.

    Raises:
        SetupError: naming repository, cause and mend.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise SetupError(f"{repo}: the Hub needs huggingface_hub: pip install 'spinf-core[engine]'") from error

    def download(*, local: bool) -> tuple[Path, str]:
        folder = Path(
            snapshot_download(
                repo,
                revision=revision or None,
                cache_dir=cache,
                allow_patterns=list(CHECKPOINT_FILES),
                ignore_patterns=["*/*"],
                local_files_only=local,
            )
        )
        check_folder(folder, hub_mend(repo, folder.name))
        return folder, folder.name

    if _COMMIT.fullmatch(revision):
        try:
            return download(local=True)
        except (LocalEntryNotFoundError, SetupError):
            pass  # absent, or begun and not finished: the Hub has the rest
    say(f"fetching {_at(repo, revision)} from the Hub")
    try:
        return download(local=False)
    except SetupError:
        raise
    except Exception as error:  # the library passes on whatever its HTTP client and its transfer backend raise
        raise SetupError(_explain(repo, revision, cache, error)) from error


def _explain(repo: str, revision: str, cache: Path | None, error: Exception) -> str:
    """One sentence with the cause and one with the mend."""
    from huggingface_hub import constants, errors

    name = _at(repo, revision)
    cache = cache or Path(constants.HF_HUB_CACHE)
    page = f"{constants.ENDPOINT}/{repo}"
    sign_in = "`hf auth login` or set HF_TOKEN"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its licence at {page}, then {sign_in} and start again"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo} has no revision {revision or 'main'}: see {page}/commits"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return f"{name} is not on the Hub, or is private: check the name at {page}; for a private one, {sign_in}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.is_offline_mode():
            command = f"hf download {repo}" + (f" --revision {revision}" if revision else "")
            return (
                f"{name} is not whole in the cache {cache}, and HF_HUB_OFFLINE is set: unset it, or run `{command}` "
                "where there is a network"
            )
        cause = error.__cause__ or error
        return (
            f"{name} is not in the cache {cache}, and {constants.ENDPOINT} could not be reached "
            f"({_first_line(cause)}): check the network and proxy settings, or give the path of a local folder"
        )
    return (
        f"{name} could not be fetched ({_first_line(error)}): check the name at {page}, the network and the free disk "
        f"space of {cache}"
    )


def is_cached(repo: str, revision: str, cache: Path | None) -> bool:
    """Whether a pinned commit is whole in the cache, without importing huggingface_hub.

    Branches and tags count as not cached: only the Hub knows what they mean now.
    """
    if not _COMMIT.fullmatch(revision):
        return False
    folder = (cache or _library_cache()) / f"models--{repo.replace('/', '--')}" / "snapshots" / revision
    try:
        check_folder(folder)
    except SetupError:
        return False
    return True


def _library_cache() -> Path:
    """The cache folder as huggingface_hub finds it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return Path(os.path.expandvars(value)).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", str(Path(shared) / "huggingface"))
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def _at(repo: str, revision: str) -> str:
    return f"{repo}@{revision}" if revision else repo


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
