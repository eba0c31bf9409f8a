"""The part of GitHub's REST API that a source needs: refs to commits, and a commit's archive.

See https://docs.github.com/en/rest/git and https://docs.github.com/en/rest/repos/contents.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import attrs
import httpx

from spinf_core import SetupError
from spinf_packs_github.location import Location

MAX_ARCHIVE_BYTES = 256 * 2**20
MAX_REDIRECTS = 5
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@attrs.frozen
class Resolved:
    """What a ref points to.

    Attributes:
        kind: of the ref. name: its name. commit: 40 hex digits.
    """

    kind: Literal["tag", "branch", "commit"]
    name: str
    commit: str


class GitHub:
    """One repository on GitHub. A context manager.

    Args:
        location: of the repository.
        api_url: base of the API. token: for it, or None. timeout: in seconds.
    """

    def __init__(self, location: Location, api_url: str, token: str | None, timeout: float) -> None:
        self._location = location
        self._token = token
        self._api = httpx.URL(api_url.rstrip("/") + "/")
        self._timeout = timeout
        self._client = httpx.Client(timeout=timeout, headers={"User-Agent": "spinf-packs-github"}, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._client.close()

    def resolve(self) -> Resolved:
        """The commit that the location's ref points to.

        Raises:
            SetupError: there is none, there are two, or GitHub cannot be asked; in one line.
        """
        ref = self._location.ref
        if _COMMIT.match(ref.lower()):
            return Resolved("commit", ref.lower(), ref.lower())
        if not ref:
            branch = self._repository()["default_branch"]
            return self._of("branch", branch) or self._no_ref(branch)
        if ref.startswith("refs/tags/"):
            return self._of("tag", ref.removeprefix("refs/tags/")) or self._no_ref(ref)
        if ref.startswith("refs/heads/"):
            return self._of("branch", ref.removeprefix("refs/heads/")) or self._no_ref(ref)
        tag, branch = self._of("tag", ref), self._of("branch", ref)
        if tag and branch:
            raise self._fault(
                f"{ref} is a tag ({tag.commit[:12]}) and a branch ({branch.commit[:12]}); write @refs/tags/{ref} or "
                f"@refs/heads/{ref}"
            )
        return tag or branch or self._no_ref(ref)

    def download(self, commit: str, target: Path) -> None:
        """Write a commit's archive, a gzipped tar, to a file.

        Raises:
            SetupError: it cannot be had whole; in one line.
        """
        url = self._api.join(f"repos/{self._location.repository}/tarball/{commit}")
        for _ in range(MAX_REDIRECTS + 1):
            with self._request(url) as response:
                if response.is_redirect:
                    url = self._redirected(url, response)
                    continue
                if response.status_code == 404:
                    self._repository()  # says so where it is the repository that is missing
                    raise self._fault(f"has no commit {commit}")
                self._check(response)
                size = 0
                with target.open("wb") as file:
                    for chunk in response.iter_raw():
                        size += len(chunk)
                        if size > MAX_ARCHIVE_BYTES:
                            raise self._fault(f"its archive is larger than {MAX_ARCHIVE_BYTES // 2**20} MiB")
                        file.write(chunk)
                return
        raise self._fault(f"its archive redirects more than {MAX_REDIRECTS} times")

    def _redirected(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        found = url.join(response.headers.get("location", ""))
        if url.scheme == "https" and found.scheme != "https":
            raise self._fault(f"its archive redirects from https to {found.scheme}")
        return found

    def _of(self, kind: Literal["tag", "branch"], name: str) -> Resolved | None:
        """The tag or branch of exactly this name."""
        space = "tags" if kind == "tag" else "heads"
        found = self._get(f"git/ref/{space}/{quote(name)}")
        if not isinstance(found, dict) or found.get("ref") != f"refs/{space}/{name}":
            return None
        target = found["object"]
        while target["type"] == "tag":  # an annotated tag points to an object that points to the commit, or to another
            annotated = self._get(f"git/tags/{target['sha']}")
            if annotated is None:
                raise self._fault(f"tag {name} points to nothing")
            target = annotated["object"]
        if target["type"] != "commit" or not _COMMIT.match(target["sha"]):
            raise self._fault(f"{kind} {name} points to a {target['type']}, not to a commit")
        return Resolved(kind, name, target["sha"])

    def _no_ref(self, ref: str) -> Resolved:
        self._repository()  # says so where it is the repository that is missing
        hint = "; a commit is named by all its 40 digits" if re.fullmatch("[0-9a-f]{4,39}", ref) else ""
        raise self._fault(f"has neither a tag nor a branch {ref}{hint}")

    def _repository(self) -> Any:
        found = self._get("")
        if found is None:
            reach = "or GITHUB_TOKEN may not read it" if self._token else "or it is private; set GITHUB_TOKEN to read it"
            raise self._fault(f"there is no repository {self._location.repository}, {reach}")
        return found

    def _get(self, path: str) -> Any:
        """A JSON answer of the API about the repository; None where there is nothing."""
        url = self._api.join(f"repos/{self._location.repository}/{path}".rstrip("/"))
        for _ in range(MAX_REDIRECTS + 1):
            with self._request(url) as response:
                if response.is_redirect:  # a repository that was renamed
                    url = self._redirected(url, response)
                    continue
                if response.status_code in (404, 409):
                    return None
                self._check(response)
                try:
                    response.read()
                    return response.json()
                except ValueError:
                    raise self._fault(f"{url.host} answered with something that is not JSON") from None
        raise self._fault(f"{url.host} redirects more than {MAX_REDIRECTS} times")

    @contextmanager
    def _request(self, url: httpx.URL) -> Iterator[httpx.Response]:
        headers = {"Accept": "application/vnd.github+json"}
        if self._token and _origin(url) == _origin(self._api):
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                yield response
        except httpx.TimeoutException:
            raise self._fault(f"{url.host} did not answer within {self._timeout:g} seconds; try again later") from None
        except httpx.HTTPError as error:
            raise self._fault(f"{url.host} cannot be reached: {error or type(error).__name__}") from None

    def _check(self, response: httpx.Response) -> None:
        status, headers = response.status_code, response.headers
        if status == 401:
            raise self._fault("GitHub does not accept GITHUB_TOKEN; renew it, or unset it for a public repository")
        if status in (403, 429):
            text = response.read().decode("utf-8", "replace")
            if headers.get("x-ratelimit-remaining") == "0" or "retry-after" in headers or "rate limit" in text.lower():
                raise self._fault(f"GitHub's rate limit is reached{_until(headers)}{'' if self._token else _MORE}")
            raise self._fault(f"GitHub refuses access (403){'; GITHUB_TOKEN may not read it' if self._token else ''}")
        if status != 200:
            raise self._fault(f"{response.url.host} answered with status {status}; try again later")

    def _fault(self, problem: str) -> SetupError:
        return SetupError(f"packs {self._location}: {problem}")


_MORE = "; set GITHUB_TOKEN for a higher one"


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or _DEFAULT_PORTS.get(url.scheme)


def _until(headers: httpx.Headers) -> str:
    reset, wait = headers.get("x-ratelimit-reset", ""), headers.get("retry-after", "")
    if wait.isdigit():
        return f"; try again in {wait} seconds"
    return f" until {time.strftime('%H:%M', time.localtime(int(reset)))}" if reset.isdigit() else ""
