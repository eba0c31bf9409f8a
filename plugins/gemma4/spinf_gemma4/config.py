"""What of a Gemma 4 `config.json` the stack needs, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from spinf_core.errors import SetupError

if TYPE_CHECKING:
    from spinf_core.nn.attention import Blocks


@attrs.frozen(kw_only=True)
class LayerConfig:
    """One layer.

    Attributes:
        kind: `sliding_attention` or `full_attention`.
        head_dim, kv_heads: of this layer.
        window: rows of depth that a sliding layer sees; None on a full one.
        blocks: what the rows of an image see of it.
        keys_as_values: whether values are the key projection's own output.
        source: the layer whose keys and values this one uses; None where it has its own.
        intermediate_size: of its feed-forward.
    """

    kind: str
    head_dim: int
    kv_heads: int
    window: int | None
    blocks: Blocks
    keys_as_values: bool
    source: int | None
    intermediate_size: int


@attrs.frozen(kw_only=True)
class GemmaConfig:
    """The text model.

    Attributes:
        per_layer: width of the per-layer embeddings, 0 for none; per_layer_vocab: their vocabulary.
        experts: how many, 0 for none; top_experts: how many a token uses; expert_size: of each.
        rope: parameters by kind of layer.
    """

    vocab_size: int
    hidden_size: int
    heads: int
    eps: float
    softcap: float | None
    max_positions: int
    tied: bool
    layers: tuple[LayerConfig, ...]
    rope: Mapping[str, Mapping[str, Any]]
    per_layer: int
    per_layer_vocab: int
    experts: int
    top_experts: int
    expert_size: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GemmaConfig:
        """From a parsed `config.json`, whose defaults and per-layer values transformers' own config class works out.

        Raises:
            SetupError: transformers cannot read it, or it asks for what the stack does not run.
        """
        from transformers import AutoConfig

        try:
            whole = AutoConfig.for_model(**config)
        except Exception as error:  # transformers raises what its parts raise
            raise SetupError(f"transformers cannot read this Gemma 4 config: {error}") from error
        text = whole.get_text_config()
        if text.hidden_activation != "gelu_pytorch_tanh":
            raise SetupError(f"activation {text.hidden_activation!r} is not implemented by the gemma4 stack")
        if text.use_bidirectional_attention == "all":
            raise SetupError("a Gemma 4 whose text attends in both directions scores no next token; use a causal checkpoint")
        experts = bool(getattr(text, "enable_moe_block", False))
        return cls(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            heads=text.num_attention_heads,
            eps=text.rms_norm_eps,
            softcap=text.final_logit_softcapping,
            max_positions=text.max_position_embeddings,
            tied=bool(text.tie_word_embeddings),
            layers=tuple(_layer(text, number) for number in range(text.num_hidden_layers)),
            rope={kind: dict(text.rope_parameters[kind]) for kind in sorted(set(text.layer_types))},
            per_layer=getattr(text, "hidden_size_per_layer_input", 0) or 0,
            per_layer_vocab=getattr(text, "vocab_size_per_layer_input", 0) or 0,
            experts=text.num_experts if experts else 0,
            top_experts=text.top_k_experts if experts else 0,
            expert_size=text.moe_intermediate_size if experts else 0,
        )


def _layer(text: Any, number: int) -> LayerConfig:
    own = text.per_layer_config[number]
    kind = text.layer_types[number]
    sliding = kind == "sliding_attention"
    first_shared = text.num_hidden_layers - text.num_kv_shared_layers
    source = None
    if number >= first_shared:
        source = max(other for other in range(first_shared) if text.layer_types[other] == kind)
    return LayerConfig(
        kind=kind,
        head_dim=own.head_dim,
        kv_heads=own.num_key_value_heads,
        window=text.sliding_window if sliding else None,
        blocks=_blocks(text, sliding),
        keys_as_values=bool(text.attention_k_eq_v) and not sliding,
        source=source,
        intermediate_size=text.intermediate_size * (2 if text.use_double_wide_mlp and source is not None else 1),
    )


def _blocks(text: Any, sliding: bool) -> Blocks:
    """As transformers' masks have it: the unified model's images on every layer, the others' on sliding ones."""
    if text.use_bidirectional_attention != "vision":
        return "apart"
    if "unified" in text.model_type:
        return "whole"
    return "windowed" if sliding else "apart"
