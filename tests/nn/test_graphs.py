"""Recorded passes, with fakes of CUDA's: what goes wrong while one is recorded."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from spinf_core.nn.graphs import PassGraphs, forget_recorded


class FakeStream:
    def wait_stream(self, other: FakeStream) -> None:
        pass


class BrokenGraph:
    """Ends a recording as CUDA does one in which something failed."""

    def capture_begin(self, **options: Any) -> None:
        pass

    def capture_end(self) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = {
        "CUDAGraph": BrokenGraph,
        "graph_pool_handle": object,
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "stream": lambda stream: contextlib.nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


def test_what_breaks_a_recording_is_what_is_raised(cuda: None) -> None:
    """Out of memory is answered in another way than a fault."""

    def full(inputs: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory left")

    with pytest.raises(torch.OutOfMemoryError):
        PassGraphs()._capture(full, {}, torch.empty(0))


def test_recorded_passes_are_forgotten_together() -> None:
    first, second = PassGraphs(), PassGraphs()
    for graphs in (first, second):
        graphs._recorded[((1,),)] = None
    forget_recorded()
    assert not first._recorded
    assert not second._recorded
