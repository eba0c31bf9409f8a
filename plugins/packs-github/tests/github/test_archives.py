"""Archives that are cut short or hostile are refused whole, and nothing of them is left."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from spinf_core import SetupError

from .conftest import COMMIT, archive, member
from .test_refs import ids, refused

TOP = f"repo-{COMMIT[:7]}"
HOSTILE = {
    "a path that climbs": member(f"{TOP}/../../escaped.json"),
    "an absolute path": member("/escaped.json"),
    "a path of another system": member(f"{TOP}/..\\..\\escaped.json"),
    "a file beside the folder": member("escaped.json"),
    "a symbolic link": member(f"{TOP}/link", tarfile.SYMTYPE, "/etc/passwd"),
    "a symbolic link inside": member(f"{TOP}/link", tarfile.SYMTYPE, "packs"),
    "a hard link": member(f"{TOP}/link", tarfile.LNKTYPE, "../../../etc/passwd"),
    "a device": member(f"{TOP}/device", tarfile.CHRTYPE),
    "a pipe": member(f"{TOP}/pipe", tarfile.FIFOTYPE),
    "a file as a folder": member(f"{TOP}/packs/small.json/inner.json"),
    "a file twice": member(f"{TOP}/packs/small.json"),
}


def written(cache: Path) -> list[str]:
    """Files below the cache's parent, but for what tags point to."""
    return [str(path) for path in cache.parent.rglob("*") if path.is_file() and path.name != "tags.json"]


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_whole(github, cache, what):
    github.serve(archive(None, HOSTILE[what]))
    assert "its archive is refused: " in refused(github, "o/r@v1")
    assert written(cache) == []
    github.serve()
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]


def test_a_member_name_in_a_pax_header_is_looked_at_too(github, cache):
    info = member("short")
    info.pax_headers = {"path": f"{TOP}/../../escaped.json"}
    github.serve(archive(None, info))
    assert "leads out of the archive" in refused(github, "o/r@v1")
    assert written(cache) == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
def test_an_archive_that_is_cut_short_is_refused(github, cache, share):
    whole = archive()
    github.serve(whole[: int(len(whole) * share)])
    assert "its archive is refused: it is" in refused(github, "o/r@v1")
    assert written(cache) == []


def test_a_tar_that_is_cut_between_members_and_compressed_again_is_still_whole_gzip(github):
    """What GitHub compressed is what is unpacked; the gzip trailer is what proves a download whole."""
    plain = gzip.decompress(archive({"a.json": b"x" * 700}))
    github.serve(gzip.compress(plain)[:-8])
    assert "cut short" in refused(github, "o/r@v1")


def test_a_download_that_ends_early_never_counts(github, cache):
    whole = archive()
    status, headers, body = 200, {"Content-Length": str(len(whole))}, whole[: len(whole) // 2]
    github.host.answers[f"/o/r/{COMMIT}"] = (status, headers, body)
    refused(github, "o/r@v1", timeout=0.5)
    assert written(cache) == []
    github.serve()
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]


def test_what_is_left_of_an_interrupted_fetch_never_counts(github, cache):
    half = cache / "github" / github.api.url.split("//")[1].replace(":", "_") / "o" / "r" / ".partial-x" / "files"
    half.mkdir(parents=True)
    (half / "half.json").write_text("{")
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]


def test_a_commit_is_fetched_once(github):
    github.fetch("o/r@v1")
    github.host.asked.clear()
    github.fetch(f"o/r@{COMMIT}")
    assert github.host.asked == []
    github.fetch(f"o/r@{COMMIT}", refresh=True)
    assert len(github.host.asked) == 1


def test_an_archive_that_grows_too_large_is_refused(github, monkeypatch):
    monkeypatch.setattr("spinf_packs_github.archive.MAX_BYTES", 2**20)
    github.serve(archive({"zeros": bytes(2**22)}))
    assert "unpacks to more than 1 MiB" in refused(github, "o/r@v1")
    monkeypatch.setattr("spinf_packs_github.api.MAX_ARCHIVE_BYTES", 100)
    assert "its archive is larger than" in refused(github, "o/r@v1")


def test_something_that_is_no_tar_is_refused(github):
    github.serve(gzip.compress(io.BytesIO(b"<html>" * 500).getvalue()))
    assert "not a whole tar archive" in refused(github, "o/r@v1")


def test_a_cache_that_cannot_be_written_is_told_in_one_line(github, cache):
    cache.write_text("a file stands in its place")
    with pytest.raises(SetupError, match=r"^packs github:o/r@v1: the cache cannot be written: "):
        github.fetch("o/r@v1")
