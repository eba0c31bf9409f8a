"""The normaliser of the LM head in Triton: the log-sum-exp of a row's soft-capped logits, in one reading of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.nn.kernels.launch import launcher

SHARES = 8  # programs to a row, so that a block of rows fills the device
BLOCK = 4096


@triton.jit
def _log_sum_exp(logits, shares, softcap, V: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    highest = float("-inf")
    total = 0.0
    for start in range(share * SHARE, tl.minimum((share + 1) * SHARE, V), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + columns, mask=columns < V, other=float("-inf"))
        if CAPPED:  # cap · tanh(x / cap), and tanh(z) is 1 − 2 / (1 + e^(2z))
            capped = softcap - 2 * softcap / (1 + tl.exp(2 * x / softcap))
            x = tl.where(columns < V, capped, float("-inf"))
        rising = tl.maximum(highest, tl.max(x, 0))
        level = tl.where(rising == float("-inf"), 0.0, rising)
        total = total * tl.exp(highest - level) + tl.sum(tl.exp(x - level), 0)
        highest = rising
    tl.store(shares + row * tl.num_programs(1) + share, highest + tl.log(total))


def log_sum_exp(logits: Tensor, softcap: float | None) -> Tensor:
    """[B] of [B, V] float32, soft-capped first where there is a cap."""
    rows, vocabulary = logits.shape
    shares = logits.new_empty(rows, SHARES)
    share = triton.cdiv(triton.cdiv(vocabulary, SHARES), BLOCK) * BLOCK
    launcher(_log_sum_exp)[rows, SHARES](
        logits, shares, softcap or 0.0, V=vocabulary, SHARE=share, BLOCK=BLOCK, CAPPED=softcap is not None, num_warps=8
    )
    return torch.logsumexp(shares, dim=1)
