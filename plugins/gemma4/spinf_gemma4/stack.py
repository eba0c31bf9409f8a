"""Gemma 4's text model: sandwich-normed blocks, five sliding layers to one full, optional per-layer embeddings and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.errors import SetupError
from spinf_core.nn.activation import gated
from spinf_core.nn.attention import TreeAttention
from spinf_core.nn.head import LMHead
from spinf_core.nn.heads import head_tables, turned_heads
from spinf_core.nn.linear import InputFormat, Linear, select_rows, write
from spinf_core.nn.norm import RMSNorm, add_norm
from spinf_core.nn.rotary import Rotary, inverse_frequencies
from spinf_core.nn.runner import AttentionRunner
from spinf_core.nn.state import LayerState, PathState, store
from spinf_core.stack import LoadContext, Model, Operation, Pass, State
from spinf_core.tokenizer import Tokenizer
from spinf_core.weights import Weights
from spinf_gemma4.config import GemmaConfig, LayerConfig
from spinf_gemma4.extras import Experts, PerLayerEmbedding, PerLayerInput

KeysValues = tuple[Tensor, Tensor]
RowWise = Callable[[Tensor], Tensor]


class Loader:
    """What the parts of the model take from the checkpoint."""

    def __init__(self, config: GemmaConfig, weights: Weights, context: LoadContext, prefix: str) -> None:
        self.config, self.weights, self.scheme, self.prefix = config, weights, context.scheme, prefix

    def norm(self, name: str, width: int, output: InputFormat | None = None) -> RMSNorm:
        """A norm, whose weight Gemma multiplies in float32."""
        return RMSNorm(self.tensor(f"{name}.weight", (width,)), self.config.eps, output, wide=True)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the text model in the scheme's dtype."""
        return self.weights.take(f"{self.prefix}.{name}", shape, self.scheme.dtype)


class Attention:
    """Grouped-query attention with normed queries, keys and values; full layers may use keys as values."""

    def __init__(self, load: Loader, layer: LayerConfig, at: str) -> None:
        c, weights, scheme = load.config, load.weights, load.scheme
        self.layer, self.heads = layer, c.heads
        q, kv = c.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        names = "q" if layer.source is not None else "qk" if layer.keys_as_values else "qkv"
        projections = tuple(f"{load.prefix}.{at}.{name}_proj" for name in names)
        self.sizes = (q, kv, kv)[: len(names)]
        self.projections = scheme.linear(weights, projections, self.sizes, c.hidden_size)
        self.out = scheme.linear(weights, (f"{load.prefix}.{at}.o_proj",), (c.hidden_size,), q)
        self.q_norm = load.norm(f"{at}.q_norm", layer.head_dim)
        own = layer.source is None
        self.k_norm = load.norm(f"{at}.k_norm", layer.head_dim) if own else None
        self.v_norm = RMSNorm(None, c.eps) if own else None

    def __call__(
        self,
        x: Tensor,  # [N, hidden], in the projections' format
        attention: TreeAttention,
        tables: tuple[Tensor, Tensor],
        shared: KeysValues | None,  # of the layer whose keys and values this one uses
        past: KeysValues | None,
        wanted: Tensor | None,
    ) -> tuple[Tensor, KeysValues]:
        """[N, hidden] -> [N, hidden], or that of the `wanted` rows, and the keys and values [N, kv_heads, head_dim] used."""
        layer = self.layer
        projected = self.projections.parts(x, self.sizes)
        q, *own = turned_heads(projected, layer.head_dim, tables, self.q_norm, self.k_norm, self.v_norm)
        keys, values = shared if shared is not None else (own[0], own[1])
        mixed = attention(
            q,
            keys,
            values,
            scale=1.0,
            window=layer.window,
            blocks=layer.blocks,
            past=past,
            output=self.out.input_format,
        )
        mixed = mixed.view(len(x), -1)
        return self.out(mixed if wanted is None else select_rows(mixed, wanted)), (keys, values)


class FeedForward:
    """gelu(x Wgᵀ) · (x Wuᵀ) Wdᵀ."""

    def __init__(self, load: Loader, size: int, at: str) -> None:
        hidden, names = load.config.hidden_size, (f"{load.prefix}.{at}.gate_proj", f"{load.prefix}.{at}.up_proj")
        self.sizes = (size, size)
        self.gate_up = load.scheme.linear(load.weights, names, self.sizes, hidden)
        self.down = load.scheme.linear(load.weights, (f"{load.prefix}.{at}.down_proj",), (hidden,), size)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, hidden] in the format of `gate_up` -> [N, hidden]."""
        gate, up = self.gate_up.parts(x, self.sizes)
        return self.down(gated(gate, up, "gelu_tanh", self.down.input_format))


class Block:
    """One layer: norms before and after attention and feed-forward, then whatever extras the checkpoint has, then a scalar."""

    def __init__(self, load: Loader, number: int) -> None:
        c, at = load.config, f"layers.{number}"
        self.attention = Attention(load, c.layers[number], f"{at}.self_attn")
        self.feed_forward = FeedForward(load, c.layers[number].intermediate_size, f"{at}.mlp")
        attention_format = self.attention.projections.input_format
        self.before_attention = load.norm(f"{at}.input_layernorm", c.hidden_size, attention_format)
        self.after_attention = load.norm(f"{at}.post_attention_layernorm", c.hidden_size)
        feed_forward_format = self.feed_forward.gate_up.input_format
        self.before_feed_forward = load.norm(f"{at}.pre_feedforward_layernorm", c.hidden_size, feed_forward_format)
        self.after_feed_forward = load.norm(f"{at}.post_feedforward_layernorm", c.hidden_size)
        self.experts = Experts(load, at) if c.experts else None
        self.per_layer_input = PerLayerInput(load, at) if c.per_layer else None
        self.scalar = load.tensor(f"{at}.layer_scalar", (1,)).item()

    def __call__(
        self,
        x: Tensor,
        normed: Tensor,
        attention: TreeAttention,
        tables: tuple[Tensor, Tensor],
        shared: KeysValues | None,
        past: KeysValues | None,
        per_layer: Tensor | None,
        then: RMSNorm,
        wanted: Tensor | None,
    ) -> tuple[Tensor, Tensor, KeysValues]:
        """The residual stream [N, hidden] and what `before_attention` made of it -> the stream behind the layer, what `then`,
        the next norm, makes of that, both at the `wanted` rows alone where some are named, and the keys and values used."""
        mixed, shared = self.attention(normed, attention, tables, shared, past, wanted)
        if wanted is not None:
            x = select_rows(x, wanted)
            per_layer = None if per_layer is None else select_rows(per_layer, wanted)
        x, ready = add_norm(x, mixed, self.after_attention, None, self.before_feed_forward)
        change = self.feed_forward(ready)
        if self.experts is not None:
            change = self.experts(x, change)
        if self.per_layer_input is None or per_layer is None:
            return *add_norm(x, change, self.after_feed_forward, self.scalar, then), shared
        x = x + self.after_feed_forward(change)
        return *add_norm(x, *self.per_layer_input(x, per_layer), self.scalar, then), shared


class Gemma4(Model):
    """A Gemma 4 checkpoint's text model."""

    numerics = 2

    def __init__(self, context: LoadContext) -> None:
        if context.options:
            raise SetupError(f"the gemma4 stack has no stack options; remove {', '.join(context.options)}")
        self.config = c = GemmaConfig.read(context.config)
        self.device, self.dtype = context.device, context.scheme.dtype
        self.tokenizer = Tokenizer.from_folder(context.folder)
        self.vocab_size, self.hidden_size, self.max_positions = c.vocab_size, c.hidden_size, c.max_positions
        weights = Weights(context.folder, context.device)
        prefix = "model.language_model" if weights.has("model.language_model.norm.weight") else "model"
        load = Loader(c, weights, context, prefix)
        self.embedding = load.tensor("embed_tokens.weight", (c.vocab_size, c.hidden_size))
        self.embedding_scale = torch.tensor(c.hidden_size**0.5, dtype=self.dtype).item()
        self.per_layer = PerLayerEmbedding(load) if c.per_layer else None
        self.shared = {layer.source for layer in c.layers if layer.source is not None}
        head_dims = {layer.kind: layer.head_dim for layer in c.layers}
        self.rotary = {
            kind: Rotary(inverse_frequencies(head_dims[kind], parameters), self.device) for kind, parameters in c.rope.items()
        }
        self.blocks = [Block(load, number) for number in range(len(c.layers))]
        self.norm = load.norm("norm", c.hidden_size)
        head = self.embedding
        if c.tied:
            weights.skip("lm_head.weight", "tied to the embedding")
        else:
            head = weights.take("lm_head.weight", (c.vocab_size, c.hidden_size), self.dtype)
        self.lm_head = LMHead(head, c.softcap, context.head_precision)
        # Which rows an expert gets, the host must know.
        self.runner = AttentionRunner(self.device, record=not c.experts)
        _skip_unused(weights, c, prefix)
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
        tables = {kind: head_tables(rotary, positions[0], self.dtype) for kind, rotary in self.rotary.items()}
        x = F.embedding(ids, self.embedding) * self.embedding_scale
        per_layer = self.per_layer(ids, x) if self.per_layer is not None else None  # [N, layers, width]
        normed = self.blocks[0].before_attention(x)
        used: dict[int, KeysValues] = {}  # of the layers that others share
        states: list[LayerState] = []
        for number, (block, layer) in enumerate(zip(self.blocks, self.config.layers, strict=True)):
            owner = number if layer.source is None else layer.source
            before = (past.layers[owner].stored[0], past.layers[owner].stored[1]) if past else None
            shared = None if layer.source is None else used[layer.source]
            own = None if per_layer is None else per_layer[:, number]
            last = number + 1 == len(self.blocks)
            then = self.norm if last else self.blocks[number + 1].before_attention
            ending = wanted if last else None
            x, normed, keys_values = block(x, normed, attention, tables[layer.kind], shared, before, own, then, ending)
            if number in self.shared:
                used[number] = keys_values
            if index is not None:
                kept_here = store(keys_values, before, index) if layer.source is None else ()
                states.append(LayerState(stored=kept_here))
        return normed, states

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """See `Model.read`."""
        return self.lm_head.read(hidden, rows, columns)

    def operations(self) -> Iterable[Operation]:
        """See `Model.operations`: one block's of each kind of layer."""
        hidden, dtype = self.config.hidden_size, self.dtype
        seen: set[tuple[str, bool, int]] = set()
        for block, layer in zip(self.blocks, self.config.layers, strict=True):
            shape = (layer.kind, layer.source is None, layer.intermediate_size)
            if shape in seen:
                continue
            seen.add(shape)
            where, width = layer.kind.partition("_")[0], self.config.heads * layer.head_dim
            yield Operation(f"{where}: projections", hidden, dtype, _chain(block.before_attention, block.attention.projections))
            yield Operation(f"{where}: attention output", width, dtype, _formatted(block.attention.out))
            yield Operation(f"{where}: feed-forward", hidden, dtype, _chain(block.before_feed_forward, block.feed_forward))


def _chain(first: RowWise, second: RowWise) -> RowWise:
    return lambda x: second(first(x))


def _formatted(linear: Linear) -> RowWise:
    return lambda x: linear(write(x, linear.input_format))


def _skip_unused(weights: Weights, config: GemmaConfig, prefix: str) -> None:
    """Leave out what a text model does not use: the towers of other media, and projections of layers that share."""
    for tower in ("vision", "audio", "embed_vision", "embed_audio", "multi_modal"):
        weights.skip(f"model.{tower}*", "only text is read")
    weights.skip("*.rotary_emb.*", "computed from the config")
    for number, layer in enumerate(config.layers):
        if layer.source is not None:
            for name in ("k_proj", "v_proj", "k_norm", "v_norm"):
                weights.skip(f"{prefix}.layers.{number}.self_attn.{name}*", "the layer uses another's keys and values")


def load(context: LoadContext) -> Gemma4:
    """The stack's factory."""
    return Gemma4(context)
