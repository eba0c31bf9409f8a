"""Every variant against transformers' own forward of each full prompt, and the conformance suite."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import torch
from spinf_gemma4 import stack
from spinf_gemma4.stack import Gemma4, load

from spinf_core.errors import SetupError
from spinf_core.nn.activation import gated
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext, Model
from spinf_core.testing.conformance import Oracle, StackConformance, check_oracle

sys.path.insert(0, str(Path(__file__).parent))

import tiny


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load_tiny(folder: Path, scheme: str = "fp32") -> Gemma4:
    config = json.loads((folder / "config.json").read_text())
    return load(LoadContext(folder=folder, config=config, device=torch.device("cpu"), scheme=Unquantized(scheme)))


class _Variant(StackConformance):
    variant = ""
    scheme = "fp32"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
        model = tiny.make(cls.variant)
        return model, tiny.save(model, tmp_path_factory.mktemp(cls.variant))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, made: tuple[torch.nn.Module, Path]) -> Model:
        return load_tiny(made[1], cls.scheme)

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, made: tuple[torch.nn.Module, Path], model: Model) -> Oracle:
        return tiny.oracle_of(made[0].to(model.dtype).float())


class TestUnified(_Variant):
    variant = "unified"


class TestUnifiedBf16(_Variant):
    variant, scheme, tolerance = "unified", "bf16", 5e-2


class TestPlain(_Variant):
    variant = "plain"


class TestSmall(_Variant):
    variant = "small"


class TestSmallBf16(_Variant):
    variant, scheme, tolerance = "small", "bf16", 5e-2


class TestExperts(_Variant):
    variant = "experts"


def another_activation(model: Gemma4, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stack, "gated", lambda gate, up, activation, output: gated(gate, up, "silu", output))


def no_scalars(model: Gemma4, patch: pytest.MonkeyPatch) -> None:
    for block in model.blocks:
        block.scalar = 1.0


def no_window(model: Gemma4, patch: pytest.MonkeyPatch) -> None:
    for block in model.blocks:
        block.attention.layer = attrs.evolve(block.attention.layer, window=None)


def no_per_layer_input(model: Gemma4, patch: pytest.MonkeyPatch) -> None:
    for block in model.blocks:
        block.per_layer_input = None


@pytest.mark.parametrize("break_", [another_activation, no_scalars, no_window, no_per_layer_input])
def test_a_broken_stack_is_off_by_more_than_bf16_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_: Callable[[Gemma4, pytest.MonkeyPatch], None]
) -> None:
    made = tiny.make("small")
    model = load_tiny(tiny.save(made, tmp_path), "bf16")
    break_(model, monkeypatch)
    with pytest.raises(AssertionError, match=r"a log-probability is off by .* more than 5e-02"):
        check_oracle(model, tiny.oracle_of(made.to(model.dtype).float()), 5e-2)


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("unified"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(SetupError, match=r"mlp\.gate_proj\.weight has shape \[96, 64\], expected \[128, 64\]"):
        load_tiny(folder)


def test_a_missing_layer_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("unified", num_hidden_layers=6), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    changed = config | {"num_hidden_layers": 12, "layer_types": config["layer_types"] * 2}
    changed.pop("per_layer_config", None)
    (folder / "config.json").write_text(json.dumps(changed | {"global_head_dim": 32, "num_global_key_value_heads": 1}))
    with pytest.raises(SetupError, match=r"no tensor model\.layers\.6"):
        load_tiny(folder)


def test_a_tensor_too_many_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("unified", tie_word_embeddings=False), tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.surprise.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(SetupError, match=r"model\.layers\.0\.surprise\.weight"):
        load_tiny(folder)


def test_text_that_attends_both_ways_is_refused(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("unified"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"use_bidirectional_attention": "all"}))
    with pytest.raises(SetupError, match="both directions"):
        load_tiny(folder)
