"""What only some Gemma 4 checkpoints have: per-layer embeddings (the small ones) and a mixture of experts (26B-A4B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.nn.activation import gated, gelu_tanh
from spinf_core.nn.linear import product, write
from spinf_core.nn.norm import RMSNorm

if TYPE_CHECKING:
    from spinf_gemma4.stack import Loader

ROWS = 16
"""An expert's products run over multiples of this many rows, whatever tokens chose it."""


class PerLayerEmbedding:
    """An embedding of every layer for every token: its identity's own, and a projection of the token's main embedding."""

    def __init__(self, load: Loader) -> None:
        c = load.config
        self.layers, self.width = len(c.layers), c.per_layer
        self.table = load.tensor("embed_tokens_per_layer.weight", (c.per_layer_vocab, self.layers * self.width))
        self.scale = torch.tensor(self.width**0.5, dtype=load.scheme.dtype).item()
        name = f"{load.prefix}.per_layer_model_projection"
        self.projection = load.scheme.linear(load.weights, (name,), (self.layers * self.width,), c.hidden_size)
        self.projection_scale = c.hidden_size**-0.5
        self.norm = load.norm("per_layer_projection_norm", self.width)

    def __call__(self, ids: Tensor, x: Tensor) -> Tensor:
        """ids [N] and their scaled embeddings [N, hidden] -> [N, layers, width]."""
        identity = F.embedding(ids, self.table) * self.scale
        projected = self.projection(write(x, self.projection.input_format)) * self.projection_scale
        shape = (len(ids), self.layers, self.width)
        mixed: Tensor = (self.norm(projected.view(shape)) + identity.view(shape)) * 2.0**-0.5
        return mixed


class PerLayerInput:
    """What the layer's embeddings add to the residual stream: norm((gelu(x Wgᵀ) · embedding) Wpᵀ)."""

    def __init__(self, load: Loader, at: str) -> None:
        c, weights, scheme = load.config, load.weights, load.scheme
        self.gate = scheme.linear(weights, (f"{load.prefix}.{at}.per_layer_input_gate",), (c.per_layer,), c.hidden_size)
        name = f"{load.prefix}.{at}.per_layer_projection"
        self.projection = scheme.linear(weights, (name,), (c.hidden_size,), c.per_layer)
        self.norm = load.norm(f"{at}.post_per_layer_input_norm", c.hidden_size)

    def __call__(self, x: Tensor, embedding: Tensor) -> tuple[Tensor, RMSNorm]:
        """[N, hidden] and the layer's embeddings [N, width] -> [N, hidden], and the norm that is still to be applied."""
        gate = self.gate(write(x, self.gate.input_format))
        return self.projection(gated(gate, embedding, "gelu_tanh", self.projection.input_format)), self.norm


class Experts:
    """A sparse feed-forward beside the dense one: each token through its best experts, weighted (Shazeer et al. 2017, eq. 1).

    An expert's rows are padded to a multiple of `ROWS`, and a token's experts are added in the order of their weights, so that
    a row depends on that row alone.
    """

    def __init__(self, load: Loader, at: str) -> None:
        c = load.config
        self.top, self.count = c.top_experts, c.experts
        self.route_norm = RMSNorm(None, c.eps)
        self.route_scale = load.tensor(f"{at}.router.scale", (c.hidden_size,))
        self.root = c.hidden_size**-0.5
        self.route = load.tensor(f"{at}.router.proj.weight", (c.experts, c.hidden_size))
        self.expert_scale = load.tensor(f"{at}.router.per_expert_scale", (c.experts,))
        self.gate_up = load.tensor(f"{at}.experts.gate_up_proj", (c.experts, 2 * c.expert_size, c.hidden_size))
        self.down = load.tensor(f"{at}.experts.down_proj", (c.experts, c.hidden_size, c.expert_size))
        self.before = load.norm(f"{at}.pre_feedforward_layernorm_2", c.hidden_size)
        self.after_dense = load.norm(f"{at}.post_feedforward_layernorm_1", c.hidden_size)
        self.after_sparse = load.norm(f"{at}.post_feedforward_layernorm_2", c.hidden_size)

    def __call__(self, x: Tensor, dense: Tensor) -> Tensor:
        """The residual stream [N, hidden] and the dense feed-forward's output [N, hidden] -> their sum, each normed."""
        scores = product(self.route_norm(x) * self.route_scale * self.root, self.route)
        weights, chosen = torch.topk(torch.softmax(scores, dim=-1, dtype=torch.float32), self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True) * self.expert_scale[chosen]  # [N, top]
        outputs = self._run(self.before(x), chosen)  # [N, top, hidden]
        sparse = torch.zeros_like(x)
        for rank in range(self.top):
            sparse = sparse + (outputs[:, rank] * weights[:, rank, None]).to(x.dtype)
        return self.after_dense(dense) + self.after_sparse(sparse)

    def _run(self, x: Tensor, chosen: Tensor) -> Tensor:
        outputs = x.new_zeros(*chosen.shape, x.shape[1])
        for expert in range(self.count):
            rows, ranks = torch.where(chosen == expert)
            if not len(rows):
                continue
            padded = x.new_zeros(-(-len(rows) // ROWS) * ROWS, x.shape[1])
            padded[: len(rows)] = x[rows]
            gate, up = product(padded, self.gate_up[expert]).chunk(2, dim=-1)
            outputs[rows, ranks] = product(gelu_tanh(gate) * up, self.down[expert])[: len(rows)]
        return outputs
