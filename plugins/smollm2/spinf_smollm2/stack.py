"""The Llama architecture (Touvron et al. 2023): pre-normed blocks of grouped-query attention and a gated SiLU feed-forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor
from torch.nn import functional as F

from spinf_core.errors import SetupError
from spinf_core.nn.attention import TreeAttention
from spinf_core.nn.head import LMHead
from spinf_core.nn.heads import head_tables, turned_heads
from spinf_core.nn.linear import InputFormat, Linear, select_rows
from spinf_core.nn.norm import RMSNorm, add_linear_norm
from spinf_core.nn.packed import GatedLinear, pack
from spinf_core.nn.rotary import Rotary, inverse_frequencies
from spinf_core.nn.runner import AttentionRunner
from spinf_core.nn.state import LayerState, PathState, store
from spinf_core.stack import LoadContext, Model, Operation, Pass, State
from spinf_core.tokenizer import Tokenizer
from spinf_core.weights import Weights


@attrs.frozen
class LlamaConfig:
    """What of `config.json` the stack needs."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    tied: bool
    rope: Mapping[str, Any]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From a parsed `config.json`, with the defaults of transformers' LlamaConfig."""
        if config.get("hidden_act", "silu") != "silu":
            raise SetupError(f"activation {config['hidden_act']!r} is not implemented by the llama stack; it runs 'silu'")
        needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        if missing := [name for name in needed if name not in config]:
            raise SetupError(f"config.json lacks {', '.join(missing)}, which the llama stack needs; fetch the checkpoint again")
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        rope = config.get("rope_parameters") or {
            **(config.get("rope_scaling") or {}),
            "rope_theta": config.get("rope_theta", 10000.0),
        }
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            intermediate_size=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            eps=config.get("rms_norm_eps", 1e-6),
            max_positions=config.get("max_position_embeddings", 2048),
            tied=config.get("tie_word_embeddings", False),
            rope=rope,
        )


class Block:
    """One layer: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: LlamaConfig, weights: Weights, context: LoadContext, number: int) -> None:
        c, scheme, at = config, context.scheme, f"model.layers.{number}"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config = c
        attention = tuple(f"{at}.self_attn.{name}_proj" for name in "qkv")
        self.sizes = (q, kv, kv)
        self.qkv = pack(scheme.linear(weights, attention, self.sizes, c.hidden_size))
        self.out = pack(scheme.linear(weights, (f"{at}.self_attn.o_proj",), (c.hidden_size,), q))
        names = (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj")
        gate_up = scheme.linear(weights, names, (c.intermediate_size,) * 2, c.hidden_size)
        self.down = pack(scheme.linear(weights, (f"{at}.mlp.down_proj",), (c.hidden_size,), c.intermediate_size))
        self.gate_up = GatedLinear(gate_up, c.intermediate_size, "silu", self.down.input_format)

        def norm(name: str, output: InputFormat | None) -> RMSNorm:
            return RMSNorm(weights.take(f"{at}.{name}.weight", (c.hidden_size,), scheme.dtype), c.eps, output)

        self.attention_norm = norm("input_layernorm", self.qkv.input_format)
        self.feed_forward_norm = norm("post_attention_layernorm", self.gate_up.input_format)

    def __call__(
        self,
        x: Tensor,
        normed: Tensor,
        attention: TreeAttention,
        tables: tuple[Tensor, Tensor],
        past: LayerState | None,
        then: RMSNorm,
        wanted: Tensor | None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The residual stream [N, hidden] and what `attention_norm` made of it -> the stream behind the layer, what `then`,
        the next norm, makes of that, both at the `wanted` rows alone where some are named, and the layer's rotated keys, and
        values, [N, kv_heads, head_dim] each."""
        c = self.config
        q, k, v = turned_heads(self.qkv.parts(normed, self.sizes), c.head_dim, tables)
        stored = None if past is None else (past.stored[0], past.stored[1])
        mixed = attention(q, k, v, scale=c.head_dim**-0.5, past=stored, output=self.out.input_format)
        mixed = mixed.flatten(1)
        if wanted is not None:
            x, mixed = select_rows(x, wanted), select_rows(mixed, wanted)
        x, ready = add_linear_norm(x, self.out, mixed, self.feed_forward_norm)
        x, normed = add_linear_norm(x, self.down, self.gate_up(ready), then)
        return x, normed, (k, v)


class Llama(Model):
    """A Llama-architecture checkpoint."""

    numerics = 2

    def __init__(self, context: LoadContext) -> None:
        if context.options:
            raise SetupError(f"the llama stack has no stack options; remove {', '.join(context.options)}")
        self.config = c = LlamaConfig.read(context.config)
        self.device, self.dtype = context.device, context.scheme.dtype
        self.tokenizer = Tokenizer.from_folder(context.folder)
        self.vocab_size, self.hidden_size, self.max_positions = c.vocab_size, c.hidden_size, c.max_positions
        weights = Weights(context.folder, context.device)
        weights.skip("*.rotary_emb.inv_freq", "computed from the config")
        self.embedding = weights.take("model.embed_tokens.weight", (c.vocab_size, c.hidden_size), self.dtype)
        self.rotary = Rotary(inverse_frequencies(c.head_dim, c.rope), self.device)
        self.blocks = [Block(c, weights, context, number) for number in range(c.layers)]
        self.norm = RMSNorm(weights.take("model.norm.weight", (c.hidden_size,), self.dtype), c.eps)
        head = self.embedding
        if c.tied:
            weights.skip("lm_head.weight", "tied to the embedding")
        else:
            head = weights.take("lm_head.weight", (c.vocab_size, c.hidden_size), self.dtype)
        self.runner = AttentionRunner(self.device)
        self.lm_head = LMHead(head, precision=context.head_precision)
        weights.finish()

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        """See `Model.forward`."""
        return self.runner.run(self._layers, pass_, past, keep)

    def _layers(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: TreeAttention,
        wanted: Tensor | None = None,
        past: PathState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerState]]:
        """ids [N], positions [A, N] -> the final-normed stream, [N, hidden] or that of the `wanted` rows, and the layers' state
        of the rows at `index`."""
        tables = head_tables(self.rotary, positions[0], self.dtype)
        x = F.embedding(ids, self.embedding)
        normed = self.blocks[0].attention_norm(x)
        states = []
        for number, block in enumerate(self.blocks):
            before = past.layers[number] if past else None
            last = number + 1 == len(self.blocks)
            then = self.norm if last else self.blocks[number + 1].attention_norm
            x, normed, state = block(x, normed, attention, tables, before, then, wanted if last else None)
            if index is not None:
                states.append(LayerState(stored=store(state, before.stored if before else None, index)))
        return normed, states

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """See `Model.read`."""
        return self.lm_head.read(hidden, rows, columns)

    def operations(self) -> Iterable[Operation]:
        """See `Model.operations`: one block's, for all blocks have the same shapes."""
        block, c = self.blocks[0], self.config
        yield Operation("norm and q, k, v", c.hidden_size, self.dtype, lambda x: block.qkv(block.attention_norm(x)))
        yield Operation("attention output", block.out.in_features, self.dtype, lambda x: self._added(block.out, x, x))
        yield Operation("feed-forward", c.hidden_size, self.dtype, lambda x: self._added(block.down, block.gate_up(x), x))

    def _added(self, linear: Linear, inputs: Tensor, stream: Tensor) -> Tensor:
        """As in a block, whose residual stream begins with the first numbers of `stream`."""
        start = F.pad(stream, (0, self.hidden_size))[:, : self.hidden_size].contiguous()
        return add_linear_norm(start, linear, inputs, self.norm)[0]


def load(context: LoadContext) -> Llama:
    """The stack's factory."""
    return Llama(context)
