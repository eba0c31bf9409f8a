"""`OWNER/REPO[@REF][#PATH]`, taken apart."""

from __future__ import annotations

import re

import attrs

from spinf_core import SetupError

_LOCATION = re.compile(r"(?P<owner>[\w.-]+)/(?P<repo>[\w.-]+?)(?:\.git)?(?:@(?P<ref>[^#]+))?(?:#(?P<path>.*))?\Z", re.ASCII)


@attrs.frozen
class Location:
    """A place on GitHub.

    Attributes:
        owner, repo: of the repository.
        ref: a tag, a branch, a commit; empty: the default branch. It may hold slashes.
        path: in the repository; empty: all of it.
    """

    owner: str
    repo: str
    ref: str = ""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Take a location apart.

        Raises:
            SetupError: it is not one.
        """
        found = _LOCATION.match(text)
        if found is None or {found["owner"], found["repo"]} & {".", ".."}:
            raise SetupError(f"packs github:{text}: expected github:OWNER/REPO, with @REF and #PATH where they are wanted")
        return cls(found["owner"], found["repo"], found["ref"] or "", (found["path"] or "").strip("/"))

    @property
    def repository(self) -> str:
        """`OWNER/REPO`."""
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        at = f"@{self.ref}" if self.ref else ""
        return f"github:{self.repository}{at}" + (f"#{self.path}" if self.path else "")
