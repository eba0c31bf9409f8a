"""Qwen3.5's text model: pre-normed blocks, of which three mix rows by the gated delta rule to one that attends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.errors import SetupError
from spinf_core.nn.activation import gated, sigmoid
from spinf_core.nn.attention import TreeAttention, tree_attention
from spinf_core.nn.convolution import PathTaps
from spinf_core.nn.delta import TreeDelta, tree_delta
from spinf_core.nn.head import LMHead
from spinf_core.nn.linear import InputFormat, write
from spinf_core.nn.norm import RMSNorm, add_norm
from spinf_core.nn.rotary import Rotary, interleaved_axes, inverse_frequencies, rotate_first
from spinf_core.nn.runner import PassRun
from spinf_core.nn.state import LayerState, store
from spinf_core.stack import LoadContext, Model, Operation, Pass, State
from spinf_core.tokenizer import Tokenizer
from spinf_core.weights import Weights
from spinf_qwen35.config import QwenConfig
from spinf_qwen35.mixer import DeltaMixer


@attrs.frozen(eq=False)
class PassTools:
    """What the layers of one pass share.

    Attributes:
        attention, delta, taps: along the paths of the pass.
        tables: of the rotary embedding.
        index: where the rows to store lie in the joint space of past and pass; None where no state is kept.
    """

    attention: TreeAttention
    delta: TreeDelta
    taps: PathTaps
    tables: tuple[Tensor, Tensor]
    index: Tensor | None


class Loader:
    """What the parts of the model take from the checkpoint."""

    def __init__(self, config: QwenConfig, weights: Weights, context: LoadContext, prefix: str) -> None:
        self.config, self.weights, self.scheme, self.prefix = config, weights, context.scheme, prefix

    def norm(self, name: str, width: int, output: InputFormat | None = None) -> RMSNorm:
        """A zero-centred norm: what is stored is its weight's distance from one, added and multiplied in float32."""
        return RMSNorm(1 + self.tensor(f"{name}.weight", (width,)).float(), self.config.eps, output, wide=True)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the text model, in the scheme's dtype where no other is asked for."""
        return self.weights.take(f"{self.prefix}.{name}", shape, dtype or self.scheme.dtype)


class Attention:
    """Grouped-query attention with normed queries and keys, partly rotated, and a gate for every number that comes out."""

    def __init__(self, load: Loader, at: str) -> None:
        c, scheme = load.config, load.scheme
        self.config, self.dtype = c, scheme.dtype
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        names = tuple(f"{load.prefix}.{at}.{name}_proj" for name in "qkv")
        self.projections = scheme.linear(load.weights, names, (2 * q, kv, kv), c.hidden_size)
        self.out = scheme.linear(load.weights, (f"{load.prefix}.{at}.o_proj",), (c.hidden_size,), q)
        self.q_norm = load.norm(f"{at}.q_norm", c.head_dim)
        self.k_norm = load.norm(f"{at}.k_norm", c.head_dim)

    def __call__(self, x: Tensor, tools: PassTools, past: LayerState | None) -> tuple[Tensor, LayerState]:
        """[N, hidden] -> [N, hidden], and the layer's part of the state."""
        c = self.config
        projected = self.projections(write(x, self.projections.input_format))
        heads = projected.view(len(x), -1, c.head_dim)
        q_gate, k, v = torch.split(heads, [2 * c.heads, c.kv_heads, c.kv_heads], dim=1)
        q, gate = q_gate.reshape(len(x), c.heads, -1).chunk(2, dim=-1)  # [N, heads, head_dim] each
        q = rotate_first(self.q_norm(q), tools.tables)
        k = rotate_first(self.k_norm(k), tools.tables)  # [N, kv_heads, head_dim]
        stored = None if past is None else (past.stored[0], past.stored[1])
        mixed = tools.attention(q, k, v, scale=c.head_dim**-0.5, past=stored) * sigmoid(gate)
        state = LayerState() if tools.index is None else LayerState(stored=store((k, v), stored, tools.index))
        return self.out(write(mixed.flatten(1), self.out.input_format)), state

    def operations(self, norm: RMSNorm) -> Iterable[Operation]:
        """The row-wise pieces of the layer behind its norm."""

        def projections(x: Tensor) -> Tensor:
            return self.projections(write(norm(x), self.projections.input_format))

        def output(x: Tensor) -> Tensor:
            return self.out(write(x, self.out.input_format))

        yield Operation("attention: projections", self.config.hidden_size, self.dtype, projections)
        yield Operation("attention: output", self.out.in_features, self.dtype, output)


class Block:
    """One layer: x + mixer(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, load: Loader, number: int) -> None:
        c, at = load.config, f"layers.{number}"
        self.kind = c.layer_types[number]
        self.mixer: Attention | DeltaMixer
        if self.kind == "linear_attention":
            self.mixer = DeltaMixer(load, f"{at}.linear_attn")
        else:
            self.mixer = Attention(load, f"{at}.self_attn")
        names = (f"{load.prefix}.{at}.mlp.gate_proj", f"{load.prefix}.{at}.mlp.up_proj")
        self.sizes = (c.intermediate_size,) * 2
        self.gate_up = load.scheme.linear(load.weights, names, self.sizes, c.hidden_size)
        down = (f"{load.prefix}.{at}.mlp.down_proj",)
        self.down = load.scheme.linear(load.weights, down, (c.hidden_size,), c.intermediate_size)
        self.mixer_norm = load.norm(f"{at}.input_layernorm", c.hidden_size)
        self.feed_forward_norm = load.norm(f"{at}.post_attention_layernorm", c.hidden_size, self.gate_up.input_format)

    def __call__(
        self, x: Tensor, normed: Tensor, tools: PassTools, past: LayerState | None, then: RMSNorm
    ) -> tuple[Tensor, Tensor, LayerState]:
        """The residual stream [N, hidden] and what `mixer_norm` made of it -> the stream behind the layer, what `then`,
        the next norm, makes of that, and the layer's part of the state."""
        mixed, state = self.mixer(normed, tools, past)
        x, ready = add_norm(x, mixed, None, None, self.feed_forward_norm)
        return *add_norm(x, self.feed_forward(ready), None, None, then), state

    def feed_forward(self, x: Tensor) -> Tensor:
        """[N, hidden] in the format of `gate_up` -> [N, hidden]."""
        gate, up = self.gate_up.parts(x, self.sizes)
        return self.down(gated(gate, up, "silu", self.down.input_format))


class Qwen35(Model):
    """A Qwen3.5 checkpoint's text model.

    Args:
        context: of the load.
        weights: to read in place of the folder's.
    """

    axes = 3
    numerics = 1

    def __init__(self, context: LoadContext, weights: Weights | None = None) -> None:
        if context.options:
            raise SetupError(f"the qwen3_5 stack has no stack options; remove {', '.join(context.options)}")
        self.config = c = QwenConfig.read(context.config)
        self.device, self.dtype = context.device, context.scheme.dtype
        if self.device.type != "cpu":
            from spinf_core.nn.kernels.tree_delta import check_widths

            check_widths(c.key_dim, c.value_dim)
        self.tokenizer = Tokenizer.from_folder(context.folder)
        self.vocab_size, self.hidden_size, self.max_positions = c.vocab_size, c.hidden_size, c.max_positions
        weights = weights or Weights(context.folder, context.device)
        prefix = "model.language_model" if weights.has("model.language_model.norm.weight") else "model"
        load = Loader(c, weights, context, prefix)
        self.embedding = load.tensor("embed_tokens.weight", (c.vocab_size, c.hidden_size))
        frequencies = inverse_frequencies(c.rotary_dim, c.rope)
        self.rotary = Rotary(frequencies, self.device, interleaved_axes(len(frequencies), c.sections))
        self.blocks = [Block(load, number) for number in range(len(c.layer_types))]
        self.norm = load.norm("norm", c.hidden_size)
        head = self.embedding
        if c.tied:
            weights.skip("lm_head.weight", "tied to the embedding")
        else:
            head = weights.take("lm_head.weight", (c.vocab_size, c.hidden_size), self.dtype)
        self.lm_head = LMHead(head, precision=context.head_precision)
        weights.skip("model.visual.*", "only text is read")
        weights.skip("mtp.*", "only the next token is predicted")
        weights.skip("*.rotary_emb.inv_freq", "computed from the config")
        weights.finish()

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        """See `Model.forward`."""
        run = PassRun.of(pass_, past, keep, self.device)
        tools = PassTools(
            attention=tree_attention(run.layout),
            delta=tree_delta(run.layout, keep),
            taps=PathTaps.build(run.layout, self.config.taps, keep),
            tables=self.rotary.tables(run.layout.on_device["positions"], self.dtype),
            index=run.index,
        )
        x = F.embedding(run.layout.on_device["ids"], self.embedding)
        normed = self.blocks[0].mixer_norm(x)
        states = []
        for number, block in enumerate(self.blocks):
            then = self.blocks[number + 1].mixer_norm if number + 1 < len(self.blocks) else self.norm
            x, normed, state = block(x, normed, tools, run.before(number), then)
            states.append(state)
        return run.read(normed), run.state(states)

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """See `Model.read`."""
        return self.lm_head.read(hidden, rows, columns)

    def operations(self) -> Iterable[Operation]:
        """See `Model.operations`: one block's of each kind of layer, for those of a kind have the same shapes."""
        blocks = {block.kind: block for block in self.blocks}
        for block in blocks.values():
            yield from block.mixer.operations(block.mixer_norm)
        block = self.blocks[0]

        def feed_forward(x: Tensor) -> Tensor:
            return block.feed_forward(block.feed_forward_norm(x))

        yield Operation("feed-forward", self.config.hidden_size, self.dtype, feed_forward)


def load(context: LoadContext) -> Qwen35:
    """The stack's factory."""
    return Qwen35(context)
