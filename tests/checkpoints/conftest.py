"""Small checkpoints, wheels and manifests to resolve."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file


@attrs.frozen(kw_only=True)
class Source:
    """Stands in for a manifest's source."""

    repo: str = ""
    revision: str = ""
    format: str = ""
    pypi: str = ""
    file: str = ""
    wheel_sha256: str = ""
    file_sha256: str = ""


@attrs.frozen(kw_only=True)
class Manifest:
    """Stands in for a manifest."""

    id: str = "tiny"
    source: Source = attrs.field(factory=Source)


MODEL = b"not really GGUF, but pinned all the same"


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path / "spinf-cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))


def write_checkpoint(folder: Path) -> None:
    """A checkpoint of three shards, written by the safetensors library."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    weight_map = {}
    for number in (1, 2, 3):
        name = f"model-0000{number}-of-00003.safetensors"
        save_file({f"layer.{number}.weight": np.full((24, 16), number, np.float32)}, folder / name)
        weight_map[f"layer.{number}.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_single(source: Path, folder: Path) -> None:
    """A conversion: one safetensors file that holds the source's bytes."""
    (folder / "config.json").write_text("{}")
    save_file({"bytes": np.frombuffer(source.read_bytes(), np.uint8)}, folder / "model.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder)
    return folder


@pytest.fixture
def convert() -> Callable[[Path, Path], None]:
    return write_single


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that pip accepts, with one data file."""
    path = tmp_path / "index" / "spinf_tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "spinf_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("spinf_tiny_model/model.gguf", MODEL)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: spinf-tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def manifest(wheel: Path) -> Manifest:
    """Pins the wheel and its file."""
    return Manifest(
        source=Source(
            pypi="spinf-tiny-model==1.0",
            format="gguf",
            file="spinf_tiny_model/model.gguf",
            wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
            file_sha256=hashlib.sha256(MODEL).hexdigest(),
        )
    )


@pytest.fixture
def hub_manifest() -> Callable[[str, str], Manifest]:
    return lambda repo, revision: Manifest(source=Source(repo=repo, revision=revision))
