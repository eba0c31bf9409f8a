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
