"""The gated delta layer (Yang, Kautz and Hatamizadeh 2024, section 3.4), on the token trie."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spinf_core.nn.activation import sigmoid
from spinf_core.nn.convolution import PathTaps, convolve
from spinf_core.nn.gated_norm import GatedRMSNorm
from spinf_core.nn.linear import PlainLinear, write
from spinf_core.nn.norm import RMSNorm
from spinf_core.nn.state import LayerState
from spinf_core.quant.reading import take_merged
from spinf_core.stack import Operation

if TYPE_CHECKING:
    from spinf_qwen35.stack import Loader, PassTools


class DeltaMixer:
    """Short convolutions give queries, keys and values; the gated delta rule mixes rows; a gated norm ends it.

    The decay's and the writing strength's projections stay in the scheme's float dtype whatever the scheme: they are a
    thousandth of the weights, and an error in a decay grows along the content. Published int4 checkpoints leave them alone too.
    """

    def __init__(self, load: Loader, at: str) -> None:
        c, scheme = load.config, load.scheme
        self.config, self.dtype = c, scheme.dtype
        self.value_width = c.value_heads * c.value_dim
        self.channels = 2 * c.key_heads * c.key_dim + self.value_width  # of the convolution: q, k, v
        names = (f"{load.prefix}.{at}.in_proj_qkv", f"{load.prefix}.{at}.in_proj_z")
        self.projections = scheme.linear(load.weights, names, (self.channels, self.value_width), c.hidden_size)
        gates = (f"{load.prefix}.{at}.in_proj_b", f"{load.prefix}.{at}.in_proj_a")
        self.gates = PlainLinear(*take_merged(load.weights, gates, (c.value_heads,) * 2, c.hidden_size, scheme.dtype))
        self.out = scheme.linear(load.weights, (f"{load.prefix}.{at}.out_proj",), (c.hidden_size,), self.value_width)
        kernel = load.tensor(f"{at}.conv1d.weight", (self.channels, 1, c.taps + 1))
        self.kernel = kernel[:, 0].float().contiguous()
        self.rate = load.tensor(f"{at}.A_log", (c.value_heads,), torch.float32).exp()
        self.rate_bias = load.tensor(f"{at}.dt_bias", (c.value_heads,), torch.float32)
        weight = load.tensor(f"{at}.norm.weight", (c.value_dim,))
        self.norm = GatedRMSNorm(weight, c.eps, self.out.input_format)

    def __call__(self, x: Tensor, tools: PassTools, past: LayerState | None) -> tuple[Tensor, LayerState]:
        """[N, hidden] -> [N, hidden], and the layer's part of the state: that of the recurrence, and of the convolution."""
        projected, gates = self._project(x)
        inputs, z = torch.split(projected, [self.channels, self.value_width], dim=-1)
        states, taps = (None, None) if past is None else past.kept
        q, k, v = self._heads(inputs, tools.taps, taps)
        g, beta = self._decay(gates)
        mixed, kept = tools.delta(q, k, v, g, beta, states)
        state = LayerState()
        if kept is not None and (kept_taps := tools.taps.kept(inputs, taps)) is not None:
            state = LayerState(kept=(kept, kept_taps))
        return self.out(self.norm(mixed, z)), state

    def operations(self, norm: RMSNorm) -> Iterable[Operation]:
        """The row-wise pieces of the layer behind its norm."""
        c, width = self.config, self.value_width

        def ending(x: Tensor) -> Tensor:
            mixed = x[:, :width].float().reshape(-1, c.value_heads, c.value_dim).contiguous()
            return self.out(self.norm(mixed, x[:, width:]))

        def beginning(x: Tensor) -> Tensor:
            projected, gates = self._project(norm(x))
            return torch.cat((projected.float(), *self._decay(gates)), dim=1)

        yield Operation("gated delta: projections", c.hidden_size, self.dtype, beginning)
        yield Operation("gated delta: gated norm and output", 2 * width, self.dtype, ending)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, hidden] -> q, k, v and z [N, channels + value_width], and the gates [N, 2 · value_heads]."""
        return self.projections(write(x, self.projections.input_format)), self.gates(x)

    def _heads(self, inputs: Tensor, taps: PathTaps, past: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [N, key_heads, key_dim] of norm 1 / √key_dim and 1, and v [N, value_heads, value_dim], float32."""
        c, key_width = self.config, self.config.key_heads * self.config.key_dim

        def heads(first: int, count: int, width: int, norm: float | None = None) -> Tensor:
            return convolve(inputs, self.kernel, taps, past, first=first, heads=count, width=width, norm=norm)

        return (
            heads(0, c.key_heads, c.key_dim, c.key_dim**-0.5),
            heads(key_width, c.key_heads, c.key_dim, 1.0),
            heads(2 * key_width, c.value_heads, c.value_dim),
        )

    def _decay(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 2 · value_heads] -> the log decay −rate · softplus(a + bias) and the writing strength σ(b), float32."""
        b, a = gates.float().chunk(2, dim=-1)
        step = a + self.rate_bias
        # torch's own softplus treats the last few numbers of an array by another formula.
        softplus = step.clamp(min=0) + torch.log1p(torch.exp(-step.abs()))
        return -self.rate * softplus, sigmoid(b)
