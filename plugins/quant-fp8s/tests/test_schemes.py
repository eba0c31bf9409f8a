"""The fp8 schemes on a CPU, where products are emulated, against float products of the numbers that fp8 stands for."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from spinf_quant_fp8s.scheme import Dynamic, Row, Static, build_static
from spinf_quant_fp8s.settings import Fp8Settings
from spinf_quant_fp8s.table import ScaleTable

from spinf_core import SetupError
from spinf_core.nn.linear import write
from spinf_core.plugins import discover
from spinf_core.quant.interface import Scheme, SchemeContext
from spinf_core.weights import Weights

FP8 = torch.float8_e4m3fn
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(32, 64, generator=GENERATOR)
X = torch.randn(48, 64, generator=GENERATOR).bfloat16()
BESIDE_LARGE = torch.cat((X[:32], 1000 * X[32:]))
PARTS = {"a": WEIGHT[:16].contiguous(), "b": WEIGHT[16:].contiguous()}


def plain(folder: Path) -> Weights:
    save_file({f"{name}.weight": weight for name, weight in PARTS.items()}, folder / "model.safetensors")
    return Weights(folder)


def static(folder: Path, **input_scales: float) -> Weights:
    tensors = {}
    for name, weight in PARTS.items():
        tensors[f"{name}.weight"] = (weight / 2**-6).to(FP8)
        tensors[f"{name}.weight_scale"] = torch.tensor([2.0**-6])
        tensors[f"{name}.input_scale"] = torch.tensor([input_scales[name]])
    save_file(tensors, folder / "model.safetensors")
    return Weights(folder)


def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x.float() / scale).to(FP8).float() * scale


def context(**settings: str) -> SchemeContext:
    return SchemeContext(name="fp8s", device=torch.device("cpu"), settings=Fp8Settings(**settings))


def test_the_plugin_brings_three_schemes_for_fp8_units():
    module = EntryPoint("quant-fp8s", "spinf_quant_fp8s.plugin", "spinf").load()
    plugins = discover(only=(), extra=[("quant-fp8s", module)], strict=True, environ={})
    assert [plugins.scheme(name).record.requires for name in ("fp8s", "fp8row", "fp8")] == [("cuda", "fp8")] * 3


@pytest.mark.parametrize("scales", [{"a": 2.0**-5, "b": 2.0**-5}, {"a": 2.0**-5, "b": 2.0**-4}], ids=["one", "two"])
def test_static_is_the_product_of_the_rounded_numbers(tmp_path: Path, scales: dict[str, float]):
    linear = build_static(context()).linear(static(tmp_path, **scales), ("a", "b"), (16, 16), 64)
    expected = [rounded(X, scales[name]) @ rounded(weight, 2**-6).T for name, weight in PARTS.items()]
    found = linear(write(X, linear.input_format))
    torch.testing.assert_close(found.float(), torch.cat(expected, dim=1), rtol=2**-8, atol=1e-6)
    assert (linear.in_features, linear.out_features) == (64, 32)


@pytest.mark.parametrize("scheme", [Row(), Dynamic()], ids=lambda scheme: scheme.name)
def test_scales_that_are_made_at_load_keep_the_product_near(tmp_path: Path, scheme: Scheme):
    linear = scheme.linear(plain(tmp_path), ("a", "b"), (16, 16), 64)
    expected = X.float() @ WEIGHT.T
    error = (linear(X).float() - expected).norm() / expected.norm()
    assert error < 2**-4  # fp8 has 3 bits behind the point, so each factor is off by 1/16 at most


def test_rows_with_scales_of_their_own_are_the_same_bits_beside_a_large_one(tmp_path: Path):
    linear = Row().linear(plain(tmp_path), ("a", "b"), (16, 16), 64)
    assert torch.equal(linear(BESIDE_LARGE)[:32], linear(X)[:32])


def test_a_row_of_a_dynamic_scale_changes_beside_a_large_one(tmp_path: Path):
    linear = Dynamic().linear(plain(tmp_path), ("a", "b"), (16, 16), 64)
    assert not torch.equal(linear(BESIDE_LARGE)[:32], linear(X)[:32])


def test_a_plain_checkpoint_takes_its_input_scales_from_the_table(tmp_path: Path):
    path = tmp_path / "scales.json"
    ScaleTable(revision="r", provenance={}, scales={"a": 2.0**-5, "b": 2.0**-5}).write(path)
    linear = build_static(context(scales=str(path))).linear(plain(tmp_path), ("a", "b"), (16, 16), 64)
    assert linear.input_format is not None
    assert linear.input_format.scale == 2.0**-5


def test_a_plain_checkpoint_without_a_table_says_what_to_do(tmp_path: Path):
    with pytest.raises(SetupError, match=r"SPINF_FP8S_SCALES, or choose --quant fp8row"):
        Static(None).linear(plain(tmp_path), ("a",), (16,), 64)


@pytest.mark.parametrize(
    "content", ["{", "[]", json.dumps({"revision": "r", "scales": {"a": 0}}), json.dumps({"scales": {"a": 1}})]
)
def test_a_damaged_table_is_refused_by_its_path(tmp_path: Path, content: str):
    path = tmp_path / "scales.json"
    path.write_text(content)
    with pytest.raises(SetupError, match=r"scales\.json"):
        ScaleTable.read(path)


def test_a_table_of_another_checkpoint_is_told(tmp_path: Path):
    table = ScaleTable(revision="r", provenance={}, scales={"other": 1.0}, path="scales.json")
    with pytest.raises(SetupError, match=r"scales\.json has no scale for a; it was made for another checkpoint"):
        Static(table).linear(plain(tmp_path), ("a",), (16,), 64)
