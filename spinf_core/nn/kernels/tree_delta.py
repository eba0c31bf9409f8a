"""The gated delta rule of one pass on a GPU: its plan on the device, and the launches of the kernels in `delta`."""

from __future__ import annotations

from itertools import islice

import attrs
import numpy as np
import torch
from torch import Tensor

from spinf_core.errors import SetupError
from spinf_core.nn.delta import start_states
from spinf_core.nn.kernels.delta import prepare_chunks, scan_contents, walk_paths
from spinf_core.nn.kernels.launch import launcher
from spinf_core.nn.walks import RecurrencePlan
from spinf_core.stack import CONTENT_TILE, IntArray

STATE_BYTES = 1 << 30
"""What states and inverses of a layer may hold at once; value heads are run in groups that keep to it."""

# Tile sizes: the quickest of those that tests/gpu/qwen_speed.py --sweep tries, on an H200.
PREPARE_PART, PREPARE_WARPS = 16, 2
SCAN_COLUMNS, SCAN_PART, SCAN_WARPS = 64, 64, 4
WALK_COLUMNS, WALK_WARPS = 32, 1


@attrs.frozen(eq=False)
class _Tables:
    """A plan on the device: chunks, runs, and walks level by level, each as the kernels' arguments name them."""

    chunk: tuple[Tensor, ...]
    run: tuple[Tensor, ...]
    rows: Tensor
    padding: Tensor
    levels: tuple[tuple[Tensor, ...], ...]


class TritonTreeDelta:
    """The rule of one pass, for heads whose widths `check_widths` accepts. See `spinf_core.nn.delta.TreeDelta`."""

    def __init__(self, plan: RecurrencePlan, device: torch.device) -> None:
        self._plan = plan
        self._tables = _tables(plan, device)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `TreeDelta`."""
        plan = self._plan
        value_heads, key_width, value_width = v.shape[1], k.shape[2], v.shape[2]
        q, k, v, g, beta = (each.contiguous() for each in (q, k, v, g, beta))
        out = torch.empty_like(v)
        out.index_fill_(0, self._tables.padding, 0.0)
        kept = None if plan.kept is None else v.new_empty(len(plan.kept), value_heads, key_width, value_width)
        kept_index = None if plan.kept is None else torch.as_tensor(plan.kept, dtype=torch.int64, device=v.device)
        each_head = 4 * (plan.states * key_width * value_width + 2 * len(self._tables.chunk[0]) * CONTENT_TILE**2)
        shared = value_heads // k.shape[1]  # value heads that share a key head stay together
        step = min(value_heads, max(1, STATE_BYTES // max(each_head, 1) // shared) * shared)
        for head0 in range(0, value_heads, step):
            heads = min(step, value_heads - head0)
            group = slice(head0, head0 + heads)
            states = start_states(plan, v[:, group], key_width, None if past is None else past[:, group])
            self._run(q, k, v, g, beta, out, states, past, head0, heads)
            if kept is not None and kept_index is not None:
                kept[:, group] = states.index_select(0, kept_index)
        return out, kept

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        out: Tensor,
        states: Tensor,
        past: Tensor | None,
        head0: int,
        heads: int,
    ) -> None:
        tables = self._tables
        key_heads, key_width = k.shape[1:]
        value_heads, value_width = v.shape[1:]
        shape = {"K": key_heads, "V": value_heads, "DK": key_width}
        chunks, runs = len(tables.chunk[0]), len(tables.run[0])
        if chunks:
            inverse = v.new_empty(chunks, heads, CONTENT_TILE, CONTENT_TILE)
            seen = torch.empty_like(inverse)
            block = min(SCAN_COLUMNS, value_width)
            launcher(prepare_chunks)[chunks, heads * key_heads // value_heads](
                q,
                k,
                g,
                beta,
                inverse,
                seen,
                *tables.chunk,
                head0,
                heads,
                **shape,
                T=CONTENT_TILE,
                PART=min(PREPARE_PART, key_width),
                num_warps=PREPARE_WARPS,
                num_stages=1,
            )
            launcher(scan_contents)[runs, heads * (value_width // block)](
                q,
                k,
                v,
                g,
                beta,
                out,
                states if past is None else past,
                states,
                inverse,
                seen,
                *tables.run,
                head0,
                heads,
                **shape,
                DV=value_width,
                T=CONTENT_TILE,
                BLOCK=block,
                PART=min(SCAN_PART, key_width),
                num_warps=SCAN_WARPS,
                num_stages=1,
            )
        block = min(WALK_COLUMNS, value_width)
        for walks in tables.levels:
            launcher(walk_paths)[len(walks[0]), heads * (value_width // block)](
                q,
                k,
                v,
                g,
                beta,
                out,
                states,
                tables.rows,
                *walks,
                head0,
                heads,
                **shape,
                DV=value_width,
                BLOCK=block,
                num_warps=WALK_WARPS,
            )


def check_widths(*widths: int) -> None:
    """Refuse head widths that the kernels do not run.

    Raises:
        SetupError: one is not a power of two of at least 16.
    """
    for width in widths:
        if width < 16 or width & (width - 1):
            raise SetupError(f"gated delta heads of width {width} run on the CPU alone; on a GPU, powers of two from 16 on do")


def _tables(plan: RecurrencePlan, device: torch.device) -> _Tables:
    """Everything in one transfer."""
    runs = plan.runs
    counts = -(-(runs.stop - runs.first) // CONTENT_TILE)
    first_chunk = np.cumsum(counts) - counts
    chunk_row = np.repeat(runs.first - first_chunk * CONTENT_TILE, counts) + np.arange(counts.sum()) * CONTENT_TILE
    chunk_rows = np.minimum(np.repeat(runs.stop, counts) - chunk_row, CONTENT_TILE)
    parts: list[list[IntArray]] = [
        [chunk_row, chunk_rows],
        [runs.first, runs.stop, first_chunk, runs.origin, runs.target, runs.answers.astype(np.int32)],
        [np.append(plan.rows, 0), plan.padding],
        *([walks.start, walks.own, walks.stop, walks.source, walks.target] for walks in plan.levels),
    ]
    # Each piece begins at 16 bytes, for kernels are compiled anew for pointers of another alignment.
    arrays = [each for part in parts for each in part]
    sizes = [len(each) + -len(each) % 4 for each in arrays]
    padded = [np.pad(each, (0, size - len(each))) for each, size in zip(arrays, sizes, strict=True)]
    flat = torch.from_numpy(np.concatenate(padded).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = (piece[: len(each)] for piece, each in zip(flat.split(sizes), arrays, strict=True))
    chunk, run, (rows, padding), *levels = (tuple(islice(pieces, len(part))) for part in parts)
    return _Tables(chunk, run, rows, padding.to(torch.int64), tuple(levels))
