"""Reported faults, met by an fp8-static Gemma 4.

Broken weights: sglang PR #32279, vmlx-swift PR #217. Scales that cannot be, and inputs beyond what was calibrated: vllm #4614.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from spinf_quant_fp8s.quantization import quantize
from spinf_quant_fp8s.scheme import Static
from spinf_quant_fp8s.table import ScaleTable
from torch import Tensor

from spinf_core.engine.probes import run_probes
from spinf_core.engine.schemes import choose_scheme
from spinf_core.errors import SetupError
from spinf_core.quant.interface import Scheme
from spinf_core.quant.unquantized import Unquantized
from spinf_core.registry import load_factory
from spinf_core.stack import LoadContext, Model
from spinf_core.testing import conformance

sys.path.insert(0, str(Path(__file__).parent))

import static

CPU = torch.device("cpu")
MODULE = "model.layers.3.mlp.down_proj"
SCALE = 2.0**-5


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An fp8-static checkpoint in shards."""
    model = static.model_of("unified").to(torch.bfloat16)
    modules = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    plain = static.located(static.save(model, tmp_path / "plain", "60KB"))
    table = ScaleTable(revision=plain.checkpoint.revision, provenance={}, scales=dict.fromkeys(modules, SCALE))
    quantize(plain, table, tmp_path / "fp8", "", lambda line: None)
    return tmp_path / "fp8"


def shard_of(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / str(index["weight_map"][name])


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Put another tensor in a tensor's place, or take it away."""
    path = shard_of(folder, name)
    tensors = {key: value for key, value in load_file(path).items() if key != name}
    save_file(tensors | ({} if tensor is None else {name: tensor}), path)
    if tensor is None:
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        del content["weight_map"][name]
        index.write_text(json.dumps(content))


def load(folder: Path, scheme: Scheme | None = None) -> Model:
    found = static.located(folder)
    context = LoadContext(folder=folder, config=found.config, device=CPU, scheme=scheme or Static(None))
    model: Model = load_factory(found.stack)(context)
    return model


def test_a_missing_shard_is_named_before_anything_is_loaded(folder: Path) -> None:
    shard = shard_of(folder, f"{MODULE}.weight")
    shard.unlink()

    with pytest.raises(SetupError, match=rf"shard {shard.name} is missing; fetch it again"):
        static.located(folder)


def test_a_shard_that_is_a_kilobyte_short_is_named_before_anything_is_loaded(folder: Path) -> None:
    shard = shard_of(folder, f"{MODULE}.weight")
    shard.write_bytes(shard.read_bytes()[:-1024])

    with pytest.raises(SetupError, match=rf"shard {shard.name} is 1,024 bytes short; fetch it again"):
        static.located(folder)


@pytest.mark.parametrize("scheme", [Static(None), Unquantized("bf16")], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("kind", ["weight_scale", "input_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, torch.nan])
def test_a_scale_that_cannot_divide_stops_the_load_by_its_name(folder: Path, scheme: Scheme, kind: str, value: float) -> None:
    change(folder, f"{MODULE}.{kind}", torch.tensor([value]))

    with pytest.raises(
        SetupError, match=rf"scale {MODULE}\.{kind} is {value:g}, .*fetch it again".replace(".layers", r"\.layers")
    ):
        load(folder, scheme)


@pytest.mark.parametrize("scheme", [Static(None), Unquantized("bf16")], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", [f"{MODULE}.{kind}" for kind in ("weight", "weight_scale", "input_scale")])
def test_a_missing_tensor_stops_the_load_by_its_name(folder: Path, scheme: Scheme, name: str) -> None:
    change(folder, name, None)

    with pytest.raises(SetupError) as caught:
        load(folder, scheme)
    assert f"no tensor {name}" in str(caught.value)


def test_a_weight_of_another_shape_stops_the_load_by_its_name(folder: Path) -> None:
    weight = load_file(shard_of(folder, f"{MODULE}.weight"))[f"{MODULE}.weight"]
    change(folder, f"{MODULE}.weight", weight[:-16].clone())

    with pytest.raises(SetupError, match=r"layers\.3\.mlp\.down_proj\.weight has shape \[48, 96\], expected \[64, 96\]"):
        load(folder)


def test_a_layout_that_is_not_known_is_refused_by_its_name(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    found = static.located(folder)

    with pytest.raises(SetupError, match="int4 layout 'gptq' is not run yet"):
        choose_scheme(static.settings(), None, static.plugins(), CPU, found.config, found.checkpoint)


@torch.inference_mode()
def test_inputs_of_ten_times_what_was_calibrated_give_finite_scores(folder: Path) -> None:
    """The norms' outputs reach about 8, which a scale of 8 / 4480 holds a tenth of."""
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        small = {name: torch.full_like(each, 8 / 4480) for name, each in tensors.items() if name.endswith("input_scale")}
        save_file(tensors | small, path)
    model = load(folder)
    probes = conformance.probes(model)[3:6]

    for rows in run_probes(model, probes, conformance.SIZES):
        assert torch.isfinite(conformance.log_probabilities(model, rows)).all()
