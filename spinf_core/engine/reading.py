"""From hidden rows to log-probabilities: the head in blocks of listed sizes, float32 to the end."""

from __future__ import annotations

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spinf_core.engine.packing import Batch
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.transfer import to_device
from spinf_core.stack import Model

HEAD_BLOCK = 256  # rows; 256 × 49k logits are 50 MB
HEAD_SIZES = {
    "cpu": Sizes((16, 32, 48, 64, 96, 128, 192, HEAD_BLOCK)),
    # Products of a few rows choose their kernel by how many there are, and a full block takes them no longer.
    "cuda": Sizes((HEAD_BLOCK,)),
}

Values = NDArray[np.float64]


@attrs.frozen(eq=False)
class Reading:
    """Log-probabilities on their way from the device.

    Attributes:
        found: [P] float32 on the host, once `arrived`.
        order: [P] the pair that each of them is of.
        stops: where the pairs of each part end, but the last.
        arrived: recorded behind the copy; None where they are there.
    """

    found: Tensor
    order: NDArray[np.int64]
    stops: NDArray[np.int64]
    arrived: torch.cuda.Event | None

    def values(self) -> list[Values]:
        """For each part [p], natural logs; waits for them. NaN where the model gave no finite normaliser."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values = np.empty(len(self.order))
        values[self.order] = self.found.numpy()
        return np.split(values, self.stops)


def read_batch(model: Model, hidden: Tensor, batch: Batch) -> Reading:
    """Read every pair of every part, without waiting for the device.

    Args:
        hidden: [R, hidden_size] at the pass's reads.
    """
    empty = np.empty(0, np.int32)
    rows = np.concatenate([empty, *(batch.read_rows(number) for number in range(len(batch.parts)))])
    columns = np.concatenate([empty, *(part.job.pair_column[part.pairs] for part in batch.parts)])
    order = np.argsort(rows, kind="stable")
    stops = np.cumsum([len(part.pairs) for part in batch.parts])[:-1]
    found, arrived = _to_host(_read_pairs(model, hidden, rows[order], columns[order]))
    return Reading(found, order, stops, arrived)


def _read_pairs(model: Model, hidden: Tensor, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Tensor:
    """[P] log-probabilities at (rows, columns), rows ascending, of `hidden` [R, hidden_size] in blocks."""
    moved = to_device({"at": rows % HEAD_BLOCK, "columns": columns}, hidden.device)
    at, columns_there = moved["at"].long(), moved["columns"].long()
    found = []
    for first in range(0, len(hidden), HEAD_BLOCK):
        mine = slice(*np.searchsorted(rows, (first, first + HEAD_BLOCK)).tolist())
        logits, normaliser = model.read(padded_block(hidden[first : first + HEAD_BLOCK]), at[mine], columns_there[mine])
        found.append(logits - normaliser[at[mine]])
    return torch.cat(found) if found else hidden.new_empty(0, dtype=torch.float32)


def _to_host(found: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    if not found.is_cuda:
        return found, None
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    host.copy_(found, non_blocking=True)
    arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    arrived.record()
    return host, arrived


def padded_block(block: Tensor) -> Tensor:
    """Up to `HEAD_BLOCK` hidden rows with rows of zeros behind them, up to a listed size of the head."""
    size = HEAD_SIZES[block.device.type].fit(len(block))
    if size == len(block):
        return block
    padded = block.new_zeros(size, block.shape[1])
    padded[: len(block)] = block
    return padded
