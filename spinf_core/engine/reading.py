"""From hidden rows to log-probabilities: the head in blocks of listed sizes, float32 to the end."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.engine.packing import Batch
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import Model

HEAD_BLOCK = 256  # rows; 256 × 49k logits are 50 MB
HEAD_SIZES = {
    "cpu": Sizes((16, 32, 48, 64, 96, 128, 192, HEAD_BLOCK)),
    # Products of a few rows choose their kernel by how many there are, and a full block takes them no longer.
    "cuda": Sizes((HEAD_BLOCK,)),
}


def read_batch(model: Model, hidden: Tensor, batch: Batch) -> list[NDArray[np.float64]]:
    """The log-probability of every pair of every part.

    Args:
        hidden: [R, hidden_size] at the pass's reads.

    Returns:
        For each part [p], natural logs; NaN where the model gave no finite normaliser.
    """
    if not batch.parts:
        return []
    rows = np.concatenate([batch.read_rows(number) for number in range(len(batch.parts))])
    columns = np.concatenate([part.job.pair_column[part.pairs] for part in batch.parts])
    values = read_pairs(model, hidden, rows, columns)
    stops = np.cumsum([len(part.pairs) for part in batch.parts])
    return np.split(values, stops[:-1])


def read_pairs(model: Model, hidden: Tensor, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> NDArray[np.float64]:
    """[P] log-probabilities at (rows, columns), rows of `hidden` [R, hidden_size] in blocks."""
    values = np.empty(len(rows))
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    for first in range(0, len(hidden), HEAD_BLOCK):
        block = hidden[first : first + HEAD_BLOCK]
        chosen = order[np.searchsorted(sorted_rows, first) : np.searchsorted(sorted_rows, first + len(block))]
        at = torch.as_tensor(rows[chosen] - first, dtype=torch.int64, device=hidden.device)
        column = torch.as_tensor(columns[chosen], dtype=torch.int64, device=hidden.device)
        logits, normaliser = model.read(padded_block(block), at, column)
        values[chosen] = (logits - normaliser[at]).double().cpu().numpy()
    return values


def padded_block(block: Tensor) -> Tensor:
    """Up to `HEAD_BLOCK` hidden rows with rows of zeros behind them, up to a listed size of the head."""
    padded = block.new_zeros(HEAD_SIZES[block.device.type].fit(len(block)), block.shape[1])
    padded[: len(block)] = block
    return padded
