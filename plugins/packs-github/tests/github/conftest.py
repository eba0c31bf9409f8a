"""GitHub, played by two servers on loopback: the API, and the host that archives are downloaded from."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest
from spinf_packs_github import source
from spinf_packs_github.settings import GitHubSettings

from spinf_core.packs.repository import Repository
from spinf_core.packs.sources import SourceContext

COMMIT = "1" * 40
OTHER = "2" * 40
TAG_OBJECT = "3" * 40

Answer = tuple[int, dict[str, str], bytes]


def pack(version: str = "0.1.0") -> dict[str, Any]:
    """A small pack, whole."""
    return {
        "pack": "demo/small",
        "version": version,
        "model": "toy",
        "media": ["text"],
        "answers": "p",
        "contexts": {"plain": "{X}\n"},
        "scoring": {"queries": [{"id": "q", "template": "\nIs it?{?}", "options": [" yes", " no"]}]},
        "reads": [{"id": "r", "query": "q", "kind": "pair", "sign": 1, "mean": 0.0, "sd": 1.0, "category": "c"}],
        "categories": {"c": {"label": "C", "platt": [1.0, 0.0], "threshold": 0.5}},
        "decision": {"mode": "per_category"},
    }


def archive(files: dict[str, bytes] | None = None, *members: tarfile.TarInfo) -> bytes:
    """A gzipped tar as GitHub makes them; members without content are added as they are."""
    files = {"packs/small.json": json.dumps(pack()).encode()} if files is None else files
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": COMMIT}) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"repo-{COMMIT[:7]}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return gzip.compress(plain.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A member of any kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


class Server:
    """Answers paths from a table, and remembers what was asked and with which token."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[dict[str, str]], Answer]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                outer.gate.wait(10)
                answer = outer.answers.get(self.path, (404, {}, b'{"message": "Not Found"}'))
                status, headers, body = answer(dict(self.headers)) if callable(answer) else answer
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(body)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # the client has given up, as it should

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


def jsoned(value: object, status: int = 200, **headers: str) -> Answer:
    return status, {name.replace("_", "-"): text for name, text in headers.items()}, json.dumps(value).encode()


@attrs.define
class FakeGitHub:
    """The repository `o/r` on a GitHub of the test's own."""

    api: Server
    host: Server
    notes: list[str]

    def ref(self, name: str, sha: str = COMMIT, kind: str = "commit") -> None:
        """Give the repository a ref, such as `tags/v1` or `heads/main`."""
        self.api.answers[f"/repos/o/r/git/ref/{name}"] = jsoned({"ref": f"refs/{name}", "object": {"type": kind, "sha": sha}})

    def serve(self, content: bytes | None = None, commit: str = COMMIT) -> None:
        """Give a commit its archive, on the other host."""
        self.api.answers[f"/repos/o/r/tarball/{commit}"] = (302, {"Location": f"{self.host.url}/o/r/{commit}"}, b"")
        self.host.answers[f"/o/r/{commit}"] = (200, {}, archive() if content is None else content)

    def fetch(self, location: str, *, refresh: bool = False, token: str | None = None, timeout: float = 5.0) -> Repository:
        context = SourceContext(
            settings=GitHubSettings(api_url=self.api.url, timeout=timeout), refresh=refresh, note=self.notes.append
        )
        return source.GitHubSource(context, token).packs(location)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packs' cache, empty."""
    monkeypatch.setenv("SPINF_PACKS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def github(cache: Path) -> Iterator[FakeGitHub]:
    """A GitHub whose repository `o/r` has one commit, reached by the tag v1."""
    fake = FakeGitHub(Server(), Server(), [])
    fake.api.answers["/repos/o/r"] = jsoned({"default_branch": "main"})
    fake.ref("tags/v1")
    fake.serve()
    yield fake
    fake.api.stop()
    fake.host.stop()
