"""Tiny random checkpoints of every variant of Gemma 4, made by transformers, whose own forward is their oracle."""

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
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 4096,
}
UNIFIED = BASE | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
PLAIN = UNIFIED | {"hidden_size_per_layer_input": 0}
SMALL = BASE | {
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 512,
    "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "use_double_wide_mlp": True,
}
EXPERTS = BASE | {
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
VARIANTS = {"unified": UNIFIED, "plain": PLAIN, "small": SMALL, "experts": EXPERTS}


def make(variant: str, **changes: Any) -> torch.nn.Module:
    """A random model in float32.

    Its logits have a standard deviation of 0.1 and each block adds half as much as the stream holds. In bfloat16 every block
    rounds anew, and a log-probability inherits that times the spread of the logits: with twice of both, transformers' own
    bfloat16 is 0.07 off its float32 on the small variant. Whatever a wrong stack does moves it by 0.1 and more.
    """
    if variant == "unified":
        from transformers.models.gemma4_unified.configuration_gemma4_unified import Gemma4UnifiedTextConfig as Config
        from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedForCausalLM as Model
    else:
        from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig as Config  # type: ignore[assignment]
        from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM as Model  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(0)
    model = Model(Config(**(VARIANTS[variant] | changes))).eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "inv_freq" in name or "embed_scale" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if "q_norm" in name or "k_norm" in name:  # so that attention is neither flat nor a choice of one key
                tensor.copy_((1 + 0.2 * noise) * len(tensor) ** -0.25)
            elif "post_" in name:
                tensor.copy_((1 + 0.2 * noise) * 0.5)
            elif "norm" in name or "scal" in name:
                tensor.copy_(1 + 0.2 * noise)
            else:
                tensor.copy_(
                    noise * tensor.shape[-1] ** -0.5 * (0.1 if "embed_tokens.weight" in name else 0.2 if "embed" in name else 1)
                )
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
