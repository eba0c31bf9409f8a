"""The stack against transformers' own forward pass, on tiny random Llama checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from spinf_smollm2.gguf import convert
from spinf_smollm2.stack import Llama, load
from transformers import LlamaConfig, LlamaForCausalLM

from spinf_core.checkpoints import resolve
from spinf_core.errors import SetupError
from spinf_core.manifests import load_manifest
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.unquantized import build
from spinf_core.stack import LoadContext, Model
from spinf_core.testing.conformance import Oracle, StackConformance
from spinf_core.testing.tokenizers import TokenizerConformance
from spinf_core.testing.toy import toy_backend, toy_tokenizer
from spinf_core.tokenizer import Tokenizer

TINY = {
    "vocab_size": -(-toy_tokenizer().vocab_size // 16) * 16,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS: dict[str, dict[str, Any]] = {
    "as SmolLM2": {},
    "untied head, one key head": {"tie_word_embeddings": False, "num_key_value_heads": 1},
    "wide heads, no grouping": {"head_dim": 32, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama 3 rope": {"rope_parameters": LLAMA_3_ROPE},
    "another theta and epsilon": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 1e-3},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """A random checkpoint, written by transformers; its biases and norms are random too."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    toy_backend().save(str(folder / "tokenizer.json"))
    return model


def stack(folder: Path, scheme: str = "fp32", **options: str) -> Llama:
    device = torch.device("cpu")
    config = json.loads((folder / "config.json").read_text())
    chosen = build(SchemeContext(name=scheme, device=device))
    return load(LoadContext(folder=folder, config=config, device=device, scheme=chosen, options=options))


def log_probabilities(model: LlamaForCausalLM) -> Oracle:
    def oracle(ids: Any) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)

    return oracle


class TestFloat32(StackConformance):
    @pytest.fixture(scope="class", params=KINDS.values(), ids=KINDS.keys())
    @classmethod
    def checkpoint(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("llama")
        return folder, write(folder, **request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, checkpoint: tuple[Path, Any]) -> Model:
        return stack(checkpoint[0])

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, checkpoint: tuple[Path, Any]) -> Oracle:
        return log_probabilities(checkpoint[1])


class TestBfloat16(TestFloat32):
    tolerance = 5e-2

    @pytest.fixture(scope="class", params=[{"initializer_range": 0.05}], ids=["as SmolLM2"])
    @classmethod
    def checkpoint(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("llama")
        return folder, write(folder, **request.param).bfloat16()

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, checkpoint: tuple[Path, Any]) -> Model:
        return stack(checkpoint[0], "bf16")


@pytest.mark.weights
class TestSmolLM2Tokenizer(TokenizerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls) -> Tokenizer:
        manifest = load_manifest(Path(__file__).parent.parent / "spinf_smollm2" / "manifests" / "smollm2-135m.toml")
        return Tokenizer.from_folder(resolve(manifest, convert=convert).folder)


def test_what_the_config_leaves_out_is_as_in_transformers(tmp_path: Path) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    (tmp_path / "config.json").write_text(json.dumps({name: config[name] for name in needed} | {"num_key_value_heads": 2}))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors")
    theirs = LlamaConfig(**{name: config[name] for name in needed})
    ours = stack(tmp_path).config
    assert (ours.eps, ours.max_positions, ours.tied) == (
        theirs.rms_norm_eps,
        theirs.max_position_embeddings,
        theirs.tie_word_embeddings,
    )
    assert ours.rope["rope_theta"] == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not implemented"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}},
            "rope type 'yarn' is not implemented",
        ),
        ({"hidden_size": 128}, "describes another model"),
        ({"num_hidden_layers": 1}, "not expected: model.layers.1"),
        ({"num_hidden_layers": 3}, "has no tensor model.layers.2"),
        ({"tie_word_embeddings": False}, "has no tensor lm_head.weight"),
    ],
    ids=str,
)
def test_a_config_that_this_stack_would_run_wrongly_is_refused(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SetupError, match=fault):
        stack(tmp_path)


def test_a_config_that_lacks_a_size_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["intermediate_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SetupError, match=r"config\.json lacks intermediate_size"):
        stack(tmp_path)


def test_unknown_stack_options_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(SetupError, match="no stack options; remove speed"):
        stack(tmp_path, speed="high")
