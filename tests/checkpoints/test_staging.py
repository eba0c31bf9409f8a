"""Spans of a file arrive byte for byte, directly and through the buffers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from spinf_core import staging
from spinf_core.staging import SpanReader

CPU = torch.device("cpu")
CONTENT = random.Random(0).randbytes(100_003)


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE", 1000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return path


# Shorter than a slice, than a buffer, ending with one, of several with a rest.
SPANS = [(0, 0), (5, 1), (17, 999), (17, 1000), (1, 4096), (3, 8192), (0, len(CONTENT)), (50_001, 30_000)]


@pytest.mark.parametrize("staged", [False, True])
def test_every_span_is_what_the_file_holds(file: Path, staged: bool) -> None:
    reader = SpanReader(CPU, staged, buffer=4096)
    read = [reader.read(file, start, size) for start, size in SPANS]
    assert [bytes(each.numpy()) for each in read] == [CONTENT[start : start + size] for start, size in SPANS]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", [500, 50_000])
def test_a_span_beyond_the_end_is_an_error(file: Path, staged: bool, size: int) -> None:
    with pytest.raises(EOFError, match=r"content ends at 100,003"):
        SpanReader(CPU, staged, buffer=4096).read(file, len(CONTENT) - 100, size)


def test_buffers_are_two_however_much_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = staging._Buffer

    def counted(size: int, device: torch.device) -> staging._Buffer:
        made.append(size)
        return real(size, device)

    monkeypatch.setattr(staging, "_Buffer", counted)
    reader = SpanReader(CPU, staged=True, buffer=4096)
    reader.read(file, 0, len(CONTENT))
    reader.read(file, 0, len(CONTENT))
    assert made == [4096, 4096]


def test_a_closed_reader_reads_again(file: Path) -> None:
    reader = SpanReader(CPU)
    reader.close()
    assert bytes(reader.read(file, 2, 5000).numpy()) == CONTENT[2:5002]
