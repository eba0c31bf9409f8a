"""What the tests of calibration and of fp8-static checkpoints share: a composition, tiny checkpoints, a corpus."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spinf_core.engine.loading import Located, locate
from spinf_core.plugins import Plugins, discover
from spinf_core.settings import Settings, load_settings
from spinf_core.testing.requests import query, request
from spinf_core.testing.toy import toy_backend

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/gemma4/tests"))

import tiny

MODULES = {"gemma4": "spinf_gemma4.plugin", "smollm2": "spinf_smollm2.plugin", "quant-fp8s": "spinf_quant_fp8s.plugin"}
LLAMA = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}

CONTENTS = ("The status of the order is open. " * 4, "Yes", "No.")
TEMPLATES = ("\nStatus:", "\nIs the question open?")


def plugins() -> Plugins:
    """The plugins of this tree, whatever is installed."""
    extra = [(name, import_module(module)) for name, module in MODULES.items()]
    return discover(only=(), extra=extra, strict=True, environ={})


def settings(**engine: Any) -> Settings:
    flags = {"device": "cpu", "token_budget": 256, "max_tokens": 512, **engine}
    return load_settings({f"engine.{name}": value for name, value in flags.items()}, environ={})


def located(folder: Path) -> Located:
    return locate(str(folder), settings(), plugins(), lambda line: None)


def model_of(kind: str) -> torch.nn.Module:
    """A random model of a variant of Gemma 4, or of Llama, `with biases` or without."""
    if not kind.startswith("llama"):
        return tiny.make(kind)
    torch.manual_seed(0)
    biased = kind == "llama with biases"
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, attention_bias=biased, mlp_bias=biased)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def save(model: torch.nn.Module, folder: Path, shard: str = "5GB") -> Path:
    """Write a checkpoint, in shards of at most that size."""
    model.save_pretrained(folder, max_shard_size=shard)
    toy_backend().save(str(folder / "tokenizer.json"))
    return folder


def write_corpus(path: Path) -> Path:
    """Requests of several lengths, with a blank line among them."""
    bodies = [request(content, *(query(template) for template in TEMPLATES)) for content in CONTENTS]
    path.write_text("\n\n".join(json.dumps(body) for body in bodies) + "\n")
    return path
