"""The LM head: logits of a block of rows, gathered at the wanted columns, with their normaliser."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spinf_core.nn.packed import packs

HeadPrecision = Literal["f32out", "bf16", "fp32"]
"""`f32out`: products of the weights' own dtype, summed in float32 and kept so, on a CPU to 17 bits; `bf16`: logits rounded to
bfloat16, which is quicker and coarser; `fp32`: float32 products."""

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
        return torch.cat([*self._chunks(hidden)], dim=1)

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Logits at (rows, columns) [P] and the log-sum-exp of every row [B], float32."""
        if hidden.is_cuda and self.precision != "fp32":
            from spinf_core.nn.kernels.head import log_sum_exp

            raw = self._product(hidden, self.weight)
            return self._capped(raw[rows, columns]), log_sum_exp(raw, self.softcap)
        found = torch.zeros(len(rows), dtype=torch.float32, device=hidden.device)
        normalisers = []
        first = 0
        for logits in self._chunks(hidden):
            last = first + logits.shape[1]
            if last - first == len(self.weight):
                found = logits[rows, columns]
            else:
                here = (columns >= first) & (columns < last)
                found = torch.where(here, logits[rows, (columns - first).clamp(0, last - first - 1)], found)
            normalisers.append(torch.logsumexp(logits, dim=-1))
            first = last
        return found, _joined(normalisers)

    def _chunks(self, hidden: Tensor) -> Iterator[Tensor]:
        """The logits [B, ·] of one part of the vocabulary after another; of all at once in float32, whose products of a part
        choose their kernel by the number of rows, and on CUDA."""
        whole = self.weight.dtype == torch.float32 or (hidden.device.type == "cuda" and self.precision != "fp32")
        for weight in (self.weight,) if whole else torch.split(self.weight, VOCABULARY_CHUNK):
            yield self._capped(self._product(hidden, weight))

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def _product(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if weight.dtype == torch.float32 or self.precision == "bf16":
            return F.linear(hidden, weight).float()
        if self.precision == "f32out" and hidden.device.type == "cuda":
            return torch.mm(hidden, weight.T, out_dtype=torch.float32)
        if self.precision == "f32out" and weight.dtype == torch.bfloat16 and packs():
            # What rounding took away is the same product again, less what is there: oneDNN subtracts before it rounds.
            coarse = F.linear(hidden, weight)
            return coarse.float().add_(torch.addmm(coarse, hidden, weight.T, beta=-1))
        return F.linear(hidden.float(), weight.float())


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The log-sum-exp [B] of several; summed one after another, since a reduction's order may follow from B."""
    if len(parts) == 1:
        return parts[0]
    largest = functools.reduce(torch.maximum, parts)
    total = functools.reduce(torch.add, [torch.exp(part - largest) for part in parts])
    return largest + torch.log(total)
