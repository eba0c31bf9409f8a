"""A toy stack with random weights: one attention layer, one gated-delta layer with a short convolution.

Small enough to test an engine with, and whole enough that what leaks between branches, jobs or passes shows. `oracle` is the
same arithmetic for one plain sequence, without tries, tiles or chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from torch import Tensor
from torch.nn import functional as F

from spinf_core.nn.activation import sigmoid, silu
from spinf_core.nn.attention import tree_attention
from spinf_core.nn.delta import tree_delta
from spinf_core.nn.head import LMHead
from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.linear import PlainLinear
from spinf_core.nn.norm import RMSNorm
from spinf_core.nn.rotary import Rotary, inverse_frequencies, rotate
from spinf_core.nn.runner import PassRun
from spinf_core.nn.state import LayerState, store
from spinf_core.stack import Model, Operation, Pass, State
from spinf_core.tokenizer import Tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TAPS = 64, 4, 2, 16, 3
EPS = 1e-6
_WORDS = "the a of and yes no Yes No status Sta tus in out part north wing gate question answer is it about red blue"


def toy_tokenizer(bos: bool = False) -> Tokenizer:
    """`toy_backend` as a checkpoint's tokenizer."""
    return Tokenizer(toy_backend(), bos=1 if bos else None, eos=(0,))


def toy_backend() -> RawTokenizer:
    """A byte-level BPE tokenizer with a few dozen merges and two control tokens, `<|end|>` and `<|begin|>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|end|>": 0, "<|begin|>": 1}
    for symbol in alphabet:
        vocab[symbol] = len(vocab)
    merges: list[tuple[str, str]] = []
    words = _WORDS.split()
    for word in ["Ġ" + word for word in words] + words + ["ĊĊ", "??", ".."]:
        left = word[0]
        for symbol in word[1:]:
            if left + symbol not in vocab:
                vocab[left + symbol] = len(vocab)
                merges.append((left, symbol))
            left += symbol
    for left in ("Sta", "ĠSta"):  # two words of the vocabulary that merge where they meet
        vocab[left + "tus"] = len(vocab)
        merges.append((left, "tus"))
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<|end|>", "<|begin|>")])
    return raw


SHAPES = {
    "norms.0.weight": (HIDDEN,),
    "norms.1.weight": (HIDDEN,),
    "norms.2.weight": (HIDDEN,),
    "qkv.weight": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "attention_out.weight": (HIDDEN, HEADS * HEAD_DIM),
    "delta_in.weight": (3 * HEADS * HEAD_DIM, HIDDEN),
    "gates.weight": (2 * HEADS, HIDDEN),
    "convolution": (3 * HEADS * HEAD_DIM, TAPS + 1),
    "delta_out.weight": (HIDDEN, HEADS * HEAD_DIM),
}
"""Every tensor of a toy checkpoint but `embedding` and `lm_head`, which are [V, HIDDEN]."""


def toy_weights(vocab_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Random weights that leave no layer, head or tap without effect."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Tensor:
        values: Tensor = torch.randn(*shape, generator=generator) * shape[-1] ** -0.5
        return values

    weights = {name: draw(shape) for name, shape in SHAPES.items()}
    for number in range(3):
        weights[f"norms.{number}.weight"] = 1 + 0.1 * weights[f"norms.{number}.weight"]
    weights["embedding"] = draw((vocab_size, HIDDEN)) * HIDDEN**0.5
    weights["lm_head"] = draw((vocab_size, HIDDEN)) * 4
    return weights


def toy_vocab_size(tokenizer: Tokenizer) -> int:
    """Columns of the head: the tokens, up to a multiple of 16."""
    return -(-tokenizer.vocab_size // 16) * 16


class ToyModel(Model):
    """The toy stack.

    Args:
        seed: of its weights, where they are not given.
        window: of the attention layer, in rows of depth; None: all.
        bos: whether its tokenizer adds BOS.
        weights: named as in `toy_weights`.
    """

    capabilities = frozenset({"score"})

    def __init__(
        self, seed: int = 0, window: int | None = None, bos: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        self.tokenizer = toy_tokenizer(bos)
        self.vocab_size = toy_vocab_size(self.tokenizer)
        self.hidden_size = HIDDEN
        self.max_positions = 4096
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.window = window
        self.rotary = Rotary(inverse_frequencies(HEAD_DIM, {"rope_theta": 10000.0}), self.device)
        w = toy_weights(self.vocab_size, seed) if weights is None else weights
        self.embedding = w["embedding"]
        self.norms = [RMSNorm(w[f"norms.{number}.weight"], EPS) for number in range(3)]
        self.qkv = PlainLinear(w["qkv.weight"])
        self.attention_out = PlainLinear(w["attention_out.weight"])
        self.delta_in = PlainLinear(w["delta_in.weight"])
        self.gates = PlainLinear(w["gates.weight"])
        self.convolution = w["convolution"]
        self.delta_out = PlainLinear(w["delta_out.weight"])
        self.lm_head = LMHead(w["lm_head"])

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        """See `Model.forward`."""
        run = PassRun.of(pass_, past, keep, self.device)
        x = F.embedding(run.layout.on_device["ids"], self.embedding)
        x, attention = self._attention(x, pass_, run)
        x, delta = self._delta(x, run.layout, run.before(1), keep)
        return run.read(self.norms[2](x)), run.state((attention, delta))

    def _attention(self, x: Tensor, pass_: Pass, run: PassRun) -> tuple[Tensor, LayerState]:
        tables = self.rotary.tables(pass_.positions[0], self.dtype)
        qkv = self.qkv(self.norms[0](x)).view(len(x), -1, HEAD_DIM)
        q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = rotate(q, tables), rotate(k, tables)
        past = run.before(0)
        stored = (past.stored[0], past.stored[1]) if past else None
        mixed = tree_attention(run.layout)(q, k, v, scale=HEAD_DIM**-0.5, window=self.window, past=stored)
        out = x + self.attention_out(mixed.reshape(len(x), -1))
        return out, LayerState(stored=store((k, v), stored, run.index) if run.index is not None else ())

    def _delta(
        self, x: Tensor, layout: TreeLayout, past: LayerState | None, keep: Sequence[int] | None
    ) -> tuple[Tensor, LayerState]:
        normed = self.norms[1](x)
        inputs = self.delta_in(normed)  # [N, 3 · H · D]
        taps = torch.as_tensor(layout.taps(TAPS), dtype=torch.int64)
        kept_taps = past.kept[1].flatten(0, 1) if past else inputs.new_zeros(0, inputs.shape[1])
        joint = torch.cat((kept_taps, inputs, inputs.new_zeros(1, inputs.shape[1])))
        windowed = torch.cat((joint[taps], inputs[:, None]), dim=1)  # [N, TAPS + 1, C], the row itself last
        q, k, v, g, beta = self._delta_terms((windowed * self.convolution.T).sum(1), self.gates(normed))
        rows = None if keep is None else np.asarray(keep)
        out, states = tree_delta(layout, rows)(q, k, v, g, beta, past.kept[0] if past else None)
        x = x + self.delta_out(out.reshape(len(x), -1))
        if rows is None or states is None:
            return x, LayerState()
        return x, LayerState(kept=(states, windowed[torch.as_tensor(rows), 1:]))

    @staticmethod
    def _delta_terms(mixed: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        q, k, v = silu(mixed).view(len(mixed), 3, HEADS, HEAD_DIM).unbind(1)
        g, beta = gates.chunk(2, dim=-1)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, -torch.log1p(torch.exp(g)), sigmoid(beta)

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """See `Model.read`."""
        return self.lm_head.read(hidden, rows, columns)

    def operations(self) -> Iterable[Operation]:
        """See `Model.operations`."""
        yield Operation("norm and q, k, v", HIDDEN, self.dtype, lambda x: self.qkv(self.norms[0](x)))
        yield Operation("attention output", HEADS * HEAD_DIM, self.dtype, self.attention_out)
        yield Operation("gated delta inputs", HIDDEN, self.dtype, lambda x: self.delta_in(self.norms[1](x)))
        yield Operation("gated delta output", HEADS * HEAD_DIM, self.dtype, self.delta_out)

    def oracle(self, ids: Sequence[int]) -> Tensor:
        """[len(ids), V] log-probabilities of one plain sequence, in float64 by dense attention and a plain recurrence."""
        x = self.embedding[torch.tensor(ids, dtype=torch.int64)].double()
        length = len(ids)

        def norm(x: Tensor, number: int) -> Tensor:
            weight = self.norms[number].weight
            assert weight is not None
            return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()

        qkv = (norm(x, 0) @ self.qkv.weight.double().T).view(length, -1, HEAD_DIM)
        q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
        angles = torch.arange(length).double()[:, None, None] * self.rotary.frequencies.double()
        q, k = rotate(q, (angles.cos(), angles.sin())), rotate(k, (angles.cos(), angles.sin()))
        k, v = k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        seen = (distance >= 0) & (distance < (self.window or length + 1))
        scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v).reshape(length, -1)
        x = x + mixed @ self.attention_out.weight.double().T

        normed = norm(x, 1)
        inputs = normed @ self.delta_in.weight.double().T
        padded = torch.cat((inputs.new_zeros(TAPS, inputs.shape[1]), inputs))
        kernel = self.convolution.double()
        convolved = torch.stack([(padded[t : t + TAPS + 1] * kernel.T).sum(0) for t in range(length)])
        q, k, v, g, beta = self._delta_terms(convolved, normed @ self.gates.weight.double().T)
        state = x.new_zeros(HEADS, HEAD_DIM, HEAD_DIM)
        outputs = []
        for t in range(length):
            state = state * g[t].exp()[:, None, None]
            error = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + torch.einsum("hk,hv->hkv", k[t], error)
            outputs.append(torch.einsum("hkv,hk->hv", state, q[t]))
        x = x + torch.stack(outputs).reshape(length, -1) @ self.delta_out.weight.double().T
        return (norm(x, 2) @ self.lm_head.weight.double().T).log_softmax(-1)
