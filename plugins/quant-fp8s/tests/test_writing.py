"""Shards written tensor by tensor. The oracle is the safetensors library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from spinf_quant_fp8s.writing import ShardWriter

from spinf_core.weights import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
TENSORS = {
    "scale": torch.tensor([0.5]),
    "weight": torch.randn(3, 7).to(torch.float8_e4m3fn),
    "norm": torch.randn(5).to(torch.bfloat16),
    "number": torch.tensor(3, dtype=torch.int64),
    "nothing": torch.empty(0, 4),
    "turned": torch.randn(4, 6).T,
    "flags": torch.tensor([True, False]),
}
ANNOUNCED = {name: (NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in TENSORS.items()}


def test_the_library_reads_what_was_written_in_any_order(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.safetensors", ANNOUNCED) as shard:
        for name in reversed(TENSORS):
            shard.put(name, TENSORS[name])

    read = load_file(tmp_path / "a.safetensors")
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].double(), tensor.double())
    assert shard.size == sum(tensor.nbytes for tensor in TENSORS.values())


def test_a_tensor_that_was_announced_and_not_written_is_an_error(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path / "a", ANNOUNCED)
    for name, tensor in TENSORS.items():
        if name != "norm":
            shard.put(name, tensor)

    with pytest.raises(ValueError, match="norm: announced and not written"):
        shard.__exit__(None, None, None)


@pytest.mark.parametrize("tensor", [torch.zeros(5), torch.zeros(6, dtype=torch.bfloat16)])
def test_a_tensor_of_another_kind_than_announced_is_an_error(tmp_path: Path, tensor: torch.Tensor) -> None:
    shard = ShardWriter(tmp_path / "a", ANNOUNCED)
    with pytest.raises(ValueError, match=r"norm is .* announced once was BF16"):
        shard.put("norm", tensor)
