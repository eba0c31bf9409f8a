"""The LM head: logits of a block of rows, gathered at the wanted columns, with their normaliser."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

HeadPrecision = Literal["f32out", "bf16", "fp32"]
"""`f32out`: products of the weights' own dtype, summed and kept in float32; `bf16`: logits rounded to bfloat16, which is
quicker and coarser; `fp32`: float32 products."""

VOCABULARY_CHUNK = 8192


class LMHead:
    """Reads logits; they are float32, optionally soft-capped: cap · tanh(logits / cap) (Gemma 2 report, section 2).

    Args:
        weight: [V, hidden].
        softcap: the cap.
        precision: of the products, where the weight is not float32 itself.
    """

    def __init__(self, weight: Tensor, softcap: float | None = None, precision: HeadPrecision = "f32out") -> None:
        self.weight = weight
        self.softcap = softcap
        self.precision = precision

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, hidden] -> [B, V] float32."""
        return self._capped(self._product(hidden))

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Logits at (rows, columns) [P] and the log-sum-exp of every row [B], float32."""
        if hidden.is_cuda:
            from spinf_core.nn.kernels.head import log_sum_exp

            raw = self._product(hidden)
            return self._capped(raw[rows, columns]), log_sum_exp(raw, self.softcap)
        logits = self.logits(hidden)
        return logits[rows, columns], torch.logsumexp(logits, dim=-1)

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def _product(self, hidden: Tensor) -> Tensor:
        if self.weight.dtype == torch.float32 or self.precision == "bf16":
            return F.linear(hidden, self.weight).float()
        if self.precision == "f32out" and hidden.device.type == "cuda":
            return torch.mm(hidden, self.weight.T, out_dtype=torch.float32)
        # A float32 copy of the whole weight would take twice its memory.
        wide = hidden.float()
        return torch.cat([F.linear(wide, chunk.float()) for chunk in torch.split(self.weight, VOCABULARY_CHUNK)], dim=1)
