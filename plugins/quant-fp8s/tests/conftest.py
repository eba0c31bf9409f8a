"""Small checkpoints, and one thread: the products here are tiny, and threads that wait for one another cost more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from spinf_core.weights import Weights

Checkpoint = Callable[[Mapping[str, Tensor]], Weights]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Writes tensors as a checkpoint, each time another."""

    def write(tensors: Mapping[str, Tensor]) -> Weights:
        folder = tmp_path_factory.mktemp("checkpoint")
        save_file(dict(tensors), folder / "model.safetensors")
        return Weights(folder)

    return write
