"""The revision of a local folder is a hash of its content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from spinf_core.checkpoints import content_hash, resolve
from spinf_core.errors import SetupError


def revision(folder: Path) -> str:
    return resolve(str(folder)).revision


def test_a_folder_resolves_to_itself(checkpoint: Path) -> None:
    found = resolve(str(checkpoint))
    assert (found.folder, found.origin) == (checkpoint, str(checkpoint))


def test_the_revision_does_not_depend_on_the_place(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere")
    assert revision(copy) == revision(checkpoint)


@pytest.mark.parametrize("name", ["model-00001-of-00003.safetensors", "config.json"])
def test_a_changed_byte_changes_the_revision(checkpoint: Path, name: str) -> None:
    before = revision(checkpoint)
    path = checkpoint / name
    path.write_bytes(path.read_bytes().replace(b"\x80\x3f", b"\x81\x3f").replace(b"llama", b"other"))
    assert revision(checkpoint) != before


def test_a_new_tokenizer_changes_the_revision(checkpoint: Path) -> None:
    before = revision(checkpoint)
    (checkpoint / "tokenizer.json").write_text("{}")
    assert revision(checkpoint) != before


def test_other_files_do_not_count(checkpoint: Path) -> None:
    before = revision(checkpoint)
    (checkpoint / "README.md").write_text("# notes")
    assert revision(checkpoint) == before


def test_the_user_s_folder_is_not_written_to(checkpoint: Path) -> None:
    before = sorted(checkpoint.iterdir())
    revision(checkpoint)
    assert sorted(checkpoint.iterdir()) == before


def test_unchanged_files_are_hashed_once(checkpoint: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = content_hash(checkpoint, tmp_path / "cache", said.append)
    assert len(said) == 3
    assert content_hash(checkpoint, tmp_path / "cache", said.append) == first
    assert len(said) == 3


def test_a_touched_file_is_hashed_again(checkpoint: Path, tmp_path: Path) -> None:
    first = content_hash(checkpoint, tmp_path / "cache", lambda text: None)
    os.utime(checkpoint / "model-00001-of-00003.safetensors", (1, 1))
    said: list[str] = []
    assert content_hash(checkpoint, tmp_path / "cache", said.append) == first
    assert len(said) == 1
    assert "model-00001-of-00003.safetensors" in said[0]


def test_a_broken_memory_of_hashes_is_ignored(checkpoint: Path, tmp_path: Path) -> None:
    first = content_hash(checkpoint, tmp_path / "cache", lambda text: None)
    for memory in (tmp_path / "cache" / "local").iterdir():
        memory.write_text('{"config.json": 5, "model')
    assert content_hash(checkpoint, tmp_path / "cache", lambda text: None) == first


def test_a_file_is_refused_with_a_way_out(checkpoint: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json is a file; give the folder"):
        resolve(str(checkpoint / "config.json"))


@pytest.mark.parametrize("name", ["nowhere", "./org/name", "/no/such/folder", "a/b/c", "org/name@", "org/na me"])
def test_what_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="neither a folder here nor a Hub id"):
        resolve(name)
