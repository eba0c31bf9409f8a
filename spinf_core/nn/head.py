"""The LM head: logits of a block of rows, gathered at the wanted columns, with their normaliser."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class LMHead:
    """weight [V, hidden]; logits are float32, optionally soft-capped: cap · tanh(logits / cap) (Gemma 2 report, section 2)."""

    def __init__(self, weight: Tensor, softcap: float | None = None) -> None:
        self.weight = weight
        self.softcap = softcap

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, hidden] -> [B, V] float32."""
        logits = F.linear(hidden, self.weight).float()
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Logits at (rows, columns) [P] and the log-sum-exp of every row [B], float32."""
        logits = self.logits(hidden)
        return logits[rows, columns], torch.logsumexp(logits, dim=-1)
