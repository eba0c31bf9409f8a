"""Tensors are taken by name, and none is left over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spinf_core.errors import SetupError
from spinf_core.weights import Weights

NORM = torch.tensor([1.0, 2.0, 3.0])
PROJECTION = torch.arange(12, dtype=torch.bfloat16).reshape(4, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "model.norm.weight": NORM,
        "model.layers.0.q_proj.weight": PROJECTION,
        "model.layers.0.rotary_emb.inv_freq": torch.ones(2),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_a_tensor_is_what_was_saved(folder: Path) -> None:
    taken = Weights(folder).take("model.layers.0.q_proj.weight", (4, 3))
    assert taken.dtype == torch.bfloat16
    assert torch.equal(taken, PROJECTION)


def test_a_tensor_is_converted_to_the_dtype_asked_for(folder: Path) -> None:
    taken = Weights(folder).take("model.layers.0.q_proj.weight", dtype=torch.float32)
    assert taken.dtype == torch.float32
    assert torch.equal(taken, PROJECTION.float())


def test_a_sharded_checkpoint_is_one(checkpoint: Path) -> None:
    weights = Weights(checkpoint)
    assert [weights.take(name)[0, 0].item() for name in weights.names()] == [1, 2, 3]
    weights.finish()


def test_a_tensor_outlives_its_file(folder: Path) -> None:
    weights = Weights(folder)
    taken = weights.take("model.norm.weight")
    weights.close()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    assert torch.equal(taken, NORM)


def test_a_missing_tensor_is_named_with_the_nearest(folder: Path) -> None:
    with pytest.raises(
        SetupError, match=r"no tensor model\.layers\.0\.k_proj\.weight; .*names are model\.layers\.0\.q_proj\.weight"
    ):
        Weights(folder).take("model.layers.0.k_proj.weight")


def test_a_wrong_shape_names_both(folder: Path) -> None:
    with pytest.raises(SetupError, match=r"model\.norm\.weight has shape \[3\], expected \[4\]"):
        Weights(folder).take("model.norm.weight", (4,))


def test_a_tensor_that_nobody_took_is_an_error(folder: Path) -> None:
    weights = Weights(folder)
    weights.take("model.norm.weight")
    with pytest.raises(SetupError, match=r"2 tensors were not expected: model\.layers\.0\.q_proj\.weight, "):
        weights.finish()


def test_a_skipped_tensor_is_not_missed(folder: Path) -> None:
    weights = Weights(folder)
    weights.take("model.norm.weight")
    weights.skip("*.inv_freq", "computed from the config")
    with pytest.raises(SetupError, match=r"1 tensor was not expected: model\.layers\.0\.q_proj\.weight;"):
        weights.finish()
    weights.take("model.layers.0.q_proj.weight")
    weights.finish()


def test_a_cut_file_is_refused_before_anything_is_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(SetupError, match=r"weights model\.safetensors is 4 bytes short"):
        Weights(folder)


def test_shape_and_presence_are_known_without_reading(folder: Path) -> None:
    weights = Weights(folder)
    assert weights.shape("model.layers.0.q_proj.weight") == (4, 3)
    assert weights.has("model.norm.weight")
    assert not weights.has("lm_head.weight")


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float16, torch.float64],
)
def test_every_dtype_comes_back_in_its_own_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = torch.randint(0, 2, (3, 5)).to(dtype)
    save_file({"a": saved, "none": saved[:0].clone(), "number": saved[1, 1].clone()}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    for name, expected in (("a", saved), ("none", saved[:0]), ("number", saved[1, 1])):
        taken = weights.take(name, tuple(expected.shape))
        assert taken.dtype == dtype
        assert torch.equal(taken.view(torch.uint8), expected.contiguous().view(torch.uint8)) if taken.ndim else True


def test_a_dtype_that_torch_has_not_is_refused_by_name(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"F6_X"'))
    with pytest.raises(SetupError, match=r"q_proj\.weight has dtype F6_X, which is not one that is read"):
        Weights(folder).take("model.layers.0.q_proj.weight")


def test_a_tensor_of_fewer_bytes_than_its_shape_needs_is_refused_by_name(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"shape":[4,3]', b'"shape":[4,4]'))
    with pytest.raises(SetupError, match=r"holds 24 bytes for tensor model\.layers\.0\.q_proj\.weight, BF16 of shape \[4, 4\]"):
        Weights(folder)


def test_a_file_that_is_cut_after_it_was_checked_is_named(folder: Path) -> None:
    weights = Weights(folder, mend="fetch it again with `x`")
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(8)
    with pytest.raises(SetupError, match=r"model\.safetensors cannot be read .*; fetch it again with `x`"):
        weights.take("model.norm.weight")
