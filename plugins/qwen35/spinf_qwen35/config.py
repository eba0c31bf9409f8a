"""What of a Qwen3.5 `config.json` the stack needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spinf_core.errors import SetupError
from spinf_core.quant.reading import has_static_fp8

TEXT = "qwen3_5_text"
LAYERS = frozenset({"linear_attention", "full_attention"})


@attrs.frozen(kw_only=True)
class QwenConfig:
    """The text model.

    Attributes:
        heads, kv_heads, head_dim: of attention layers.
        key_heads, key_dim, value_heads, value_dim: of gated delta layers; value heads share key heads in equal groups.
        taps: rows before its own that the short convolution sees.
        layer_types: `linear_attention` (gated delta) or `full_attention`, layer by layer.
        rotary_dim: how many numbers of an attention head are turned.
        sections: pairs of them that each rotary axis would have, if they were not interleaved.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    taps: int
    eps: float
    max_positions: int
    tied: bool
    layer_types: tuple[str, ...]
    rope: Mapping[str, Any]
    rotary_dim: int
    sections: tuple[int, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QwenConfig:
        """From a parsed `config.json`, whose defaults transformers' own config class works out.

        Raises:
            SetupError: transformers cannot read it, or it asks for what the stack does not run.
        """
        _refuse_relatives(config)
        has_static_fp8(config)  # raises for quantized layouts that are not read
        from transformers import AutoConfig

        try:
            whole = AutoConfig.for_model(**config)
        except Exception as error:  # transformers raises what its parts raise
            raise SetupError(f"transformers cannot read this Qwen3.5 config: {error}") from error
        text = whole.get_text_config()
        rope = dict(text.rope_parameters)
        rotary_dim = int(text.head_dim * rope.get("partial_rotary_factor", 1.0))
        _refuse_what_is_not_run(text, rope)
        return cls(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            key_heads=text.linear_num_key_heads,
            key_dim=text.linear_key_head_dim,
            value_heads=text.linear_num_value_heads,
            value_dim=text.linear_value_head_dim,
            taps=text.linear_conv_kernel_dim - 1,
            eps=text.rms_norm_eps,
            max_positions=text.max_position_embeddings,
            tied=bool(whole.tie_word_embeddings),
            layer_types=tuple(text.layer_types),
            rope=rope,
            rotary_dim=rotary_dim,
            sections=tuple(rope.get("mrope_section", (11, 11, 10))),
        )


def _refuse_relatives(config: Mapping[str, Any]) -> None:
    kinds = (config.get("model_type"), (config.get("text_config") or {}).get("model_type", TEXT))
    for kind in kinds:
        if "moe" in str(kind):
            raise SetupError(f"model type {kind!r} is a mixture of experts; the qwen3_5 stack runs dense models alone")
    if kinds[1] != TEXT:
        raise SetupError(f"the text model is of type {kinds[1]!r}; the qwen3_5 stack runs {TEXT!r}")


def _refuse_what_is_not_run(text: Any, rope: Mapping[str, Any]) -> None:
    if text.hidden_act != "silu":
        raise SetupError(f"activation {text.hidden_act!r} is not implemented by the qwen3_5 stack; it runs 'silu'")
    if unknown := set(text.layer_types) - LAYERS:
        raise SetupError(f"layers of type {', '.join(sorted(unknown))} are not implemented by the qwen3_5 stack")
    if rope.get("rope_type", "default") != "default":
        raise SetupError(f"rope type {rope['rope_type']!r} is not implemented by the qwen3_5 stack; 'default' is")
    if text.linear_num_value_heads % text.linear_num_key_heads:
        raise SetupError(
            f"{text.linear_num_value_heads} value heads do not share {text.linear_num_key_heads} key heads equally; "
            "config.json is damaged, fetch the checkpoint again"
        )
