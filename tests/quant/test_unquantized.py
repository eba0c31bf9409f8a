"""Unquantized linears from named weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from spinf_core.errors import SetupError
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.unquantized import build
from spinf_core.weights import Weights

TENSORS = {
    "a.weight": torch.randn(3, 8),
    "b.weight": torch.randn(5, 8),
    "a.bias": torch.randn(3),
    "b.bias": torch.randn(5),
}


def weights(folder: Path, *without: str) -> Weights:
    save_file({name: values for name, values in TENSORS.items() if name not in without}, folder / "model.safetensors")
    return Weights(folder)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_weights_laid_one_under_another_give_the_outputs_of_each(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    scheme = build(SchemeContext(name=name, device=torch.device("cpu")))
    linear = scheme.linear(weights(tmp_path), ("a", "b"), (3, 5), 8)
    x = torch.randn(4, 8).to(dtype)
    each = [F.linear(x, TENSORS[f"{n}.weight"].to(dtype), TENSORS[f"{n}.bias"].to(dtype)) for n in "ab"]
    torch.testing.assert_close(linear(x), torch.cat(each, dim=1))
    assert (linear.in_features, linear.out_features, linear.input_format) == (8, 8, None)


def test_a_bias_that_only_some_of_them_have_is_refused_by_name(tmp_path: Path) -> None:
    scheme = build(SchemeContext(name="fp32", device=torch.device("cpu")))
    with pytest.raises(SetupError, match=r"no tensor b\.bias"):
        scheme.linear(weights(tmp_path, "b.bias"), ("a", "b"), (3, 5), 8)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    scheme = build(SchemeContext(name="fp32", device=torch.device("cpu")))
    with pytest.raises(SetupError, match=r"tensor b\.weight has shape \[5, 8\], expected \[6, 8\]"):
        scheme.linear(weights(tmp_path), ("a", "b"), (3, 6), 8)
