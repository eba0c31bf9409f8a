"""Checkpoints come from the Hub through its own library; what goes wrong is named with a mend.

A small server on this machine answers as the Hub does, so that the library's own behaviour is what is tested.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spinf_core.checkpoints import is_cached, resolve
from spinf_core.errors import SetupError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Serves one repository, `org/tiny`, of the files of a folder; others fail in the ways in which the Hub's do."""

    files: Path
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        for name, status, code in (("gated", 403, "GatedRepo"), ("absent", 404, "RepoNotFound"), ("down", 500, "")):
            if f"org/{name}" in self.path:
                return self._answer(status, b"{}", {"X-Error-Code": code} if code else {})
        if self.path.startswith("/api/models/org/tiny/revision/"):
            if self.path.rsplit("/", 1)[1].split("?")[0] not in ("main", COMMIT):
                return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": []}).encode())
        if self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": self._etag(path)}
                for path in sorted(self.files.iterdir())
            ]
            return self._answer(200, json.dumps(tree).encode())
        path = self.files / self.path.rsplit("/", 1)[1]
        return self._answer(200, path.read_bytes(), {"ETag": f'"{self._etag(path)}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _etag(self, path: Path) -> str:
        return hashlib.sha1(path.read_bytes()).hexdigest()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    (checkpoint / "pytorch_model.bin").write_bytes(b"not wanted")
    handler = type("TinyHub", (Hub,), {"files": checkpoint, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_hub_id_resolves_to_the_commit_of_its_main_branch(hub: type[Hub], checkpoint: Path) -> None:
    found = resolve("org/tiny")
    assert (found.revision, found.origin) == (COMMIT, f"org/tiny@{COMMIT}")
    fetched = {path.name for path in found.folder.iterdir()}
    assert fetched == {path.name for path in checkpoint.iterdir()} - {"pytorch_model.bin"}


def test_a_pinned_commit_that_is_whole_in_the_cache_asks_nobody(hub: type[Hub]) -> None:
    first = resolve(f"org/tiny@{COMMIT}")
    hub.asked.clear()
    assert resolve(f"org/tiny@{COMMIT}") == first
    assert hub.asked == []


def test_a_manifest_s_pin_is_known_to_be_cached(hub: type[Hub], hub_manifest: Callable[[str, str], Any]) -> None:
    manifest = hub_manifest("org/tiny", COMMIT)
    assert not is_cached(manifest)
    resolve(manifest)
    assert is_cached(manifest)


def test_a_pin_whose_shard_was_lost_is_not_cached_and_is_completed(
    hub: type[Hub], hub_manifest: Callable[[str, str], Any]
) -> None:
    manifest = hub_manifest("org/tiny", COMMIT)
    folder = resolve(manifest).folder
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert not is_cached(manifest)
    assert (resolve(manifest).folder / "model-00002-of-00003.safetensors").is_file()


def test_a_cut_shard_names_the_command_that_fetches_it(hub: type[Hub], checkpoint: Path) -> None:
    path = checkpoint / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1024])
    command = f"hf download org/tiny --revision {COMMIT} --force-download"
    with pytest.raises(SetupError, match=f"1,024 bytes short; fetch it again with `{command}`"):
        resolve("org/tiny")


def test_a_gated_repository_asks_for_its_licence(hub: type[Hub]) -> None:
    with pytest.raises(SetupError, match=r"org/gated is gated: accept its licence at .*/org/gated, then `hf auth login`"):
        resolve("org/gated")


def test_an_absent_repository_may_be_private(hub: type[Hub]) -> None:
    with pytest.raises(SetupError, match=r"org/absent is not on the Hub, or is private.*set HF_TOKEN"):
        resolve("org/absent")


def test_an_unknown_revision_is_named(hub: type[Hub]) -> None:
    with pytest.raises(SetupError, match=r"org/tiny has no revision v9: see .*/org/tiny/commits"):
        resolve("org/tiny@v9")


def test_a_hub_that_is_down_is_named(hub: type[Hub]) -> None:
    with pytest.raises(SetupError, match=r"org/down .*could not be reached .*500"):
        resolve("org/down")


@pytest.mark.usefixtures("offline")
def test_offline_names_the_variable_and_the_command() -> None:
    with pytest.raises(
        SetupError, match=r"org/tiny@main is not whole in the cache .*HF_HUB_OFFLINE is set.*`hf download org/tiny"
    ):
        resolve("org/tiny@main")


def test_whatever_a_transfer_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(*arguments: object, **options: object) -> str:
        raise RuntimeError("peer closed the connection\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", breaks_off)
    with pytest.raises(SetupError, match=r"org/tiny could not be fetched \(peer closed the connection\): check"):
        resolve("org/tiny")


def test_no_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SetupError, match=r"org/tiny is not in the cache .*could not be reached .*check the network"):
        resolve("org/tiny")


def test_a_branch_does_not_count_as_cached(hub: type[Hub], hub_manifest: Callable[[str, str], Any]) -> None:
    resolve("org/tiny")
    assert not is_cached(hub_manifest("org/tiny", "main"))
