"""A calibration corpus: requests as `/v1/score` takes them, one JSON object a line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from spinf_core.errors import Rejected, SetupError
from spinf_core.limits import Limits
from spinf_core.packs.catalog import Catalog
from spinf_core.packs.request import with_packs
from spinf_core.protocol import Features, ParsedRequest, json_loads, parse_request


@attrs.frozen
class Corpus:
    """A file's requests.

    Attributes:
        path: of the file. sha256: of its bytes, in hex.
        bodies: the value of each line that is not blank, with the line's number from 1 on.
    """

    path: Path
    sha256: str
    bodies: tuple[tuple[int, dict[str, object]], ...]

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """Read a corpus.

        Raises:
            SetupError: the file cannot be read, holds no request, or a line, which is named, is no JSON object.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SetupError(f"corpus {path}: {error.strerror}") from error
        bodies = []
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                body = json_loads(line)
            except Rejected as error:
                raise refusal(path, number, error) from None
            if not isinstance(body, dict):
                raise SetupError(
                    f"corpus {path}, line {number}: not a JSON object; every line is the body of a /v1/score request"
                )
            bodies.append((number, body))
        if not bodies:
            raise SetupError(f"corpus {path} is empty; write into it requests like those to be served, one JSON object a line")
        return cls(path, hashlib.sha256(content).hexdigest(), tuple(bodies))

    @property
    def names_packs(self) -> bool:
        """Whether some request may ask for a prompt pack."""
        return any(isinstance(scoring := body.get("scoring"), dict) and scoring.get("packs") for _, body in self.bodies)

    def parse(self, limits: Limits, catalog: Catalog) -> list[tuple[int, ParsedRequest]]:
        """The requests, each with its line's number. Which model they name does not matter.

        Raises:
            SetupError: naming line, field and cause of what a server would refuse.
        """
        parsed = []
        for number, body in self.bodies:
            try:
                request = parse_request(body, limits=limits, features=Features(packs=catalog.known))
                parsed.append((number, with_packs(request, catalog)[0]))
            except Rejected as error:
                raise refusal(self.path, number, error) from None
        return parsed


def refusal(path: Path, number: int, error: Rejected) -> SetupError:
    """What is wrong with a line, for whoever wrote it."""
    field = f"{error.param}: " if error.param else ""
    return SetupError(f"corpus {path}, line {number}: {field}{error.message}")
