"""Tiny random checkpoints of the family, made by transformers, whose own forward is their oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from spinf_core.testing.conformance import Oracle
from spinf_core.testing.toy import toy_backend

BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "text": BASE,
    "tied": BASE
    | {
        "tie_word_embeddings": True,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 4,
        "linear_value_head_dim": 32,
    },
    "whole": BASE,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}


def make(variant: str, **changes: Any) -> torch.nn.Module:
    """A random model in float32, whose weights bfloat16 holds, whose decays are slow and fast, whose logits are spread.

    Its norms' epsilon keeps heads whose first outputs nearly cancel from turning into noise, as they would in any bfloat16.
    """
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

    shape = VARIANTS[variant] | changes
    model: torch.nn.Module
    if variant == "whole":
        model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=shape, vision_config=VISION)).eval()
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("A_log"):
                tensor.copy_(noise)
            elif name.endswith("dt_bias"):
                tensor.copy_(noise - 2)
            elif name.endswith("linear_attn.norm.weight"):
                tensor.copy_(1 + 0.2 * noise)
            elif "norm" in name:
                tensor.copy_(0.2 * noise)
            elif "conv1d" in name:
                tensor.copy_(0.7 * noise)
            else:
                spread = {"embed_tokens": 1.0, "lm_head": 0.5 * 64**-0.5}.get(name.split(".")[-2], tensor.shape[-1] ** -0.5)
                tensor.copy_(noise * spread)
            tensor.copy_(tensor.bfloat16())
    return model


def save(model: torch.nn.Module, folder: Path) -> Path:
    """Write it as a checkpoint with the toy's tokenizer."""
    model.save_pretrained(folder)  # type: ignore[operator]
    toy_backend().save(str(folder / "tokenizer.json"))
    return folder


def oracle_of(model: torch.nn.Module, device: str = "cpu") -> Oracle:
    """transformers' own forward of one prompt."""

    @torch.inference_mode()
    def log_probabilities(ids: Any) -> torch.Tensor:
        logits: torch.Tensor = model(torch.tensor([list(ids)], device=device)).logits[0]
        return logits.float().log_softmax(-1).cpu()

    return log_probabilities
