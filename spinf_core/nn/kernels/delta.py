"""The gated delta rule in Triton (see `spinf_core.nn.delta`): contents in chunks, paths row by row with the state on chip.

Three kernels. `_invert` works out, for each chunk and value head, the inverse of the chunk's triangular system by forward
substitution, for all chunks at once. `_scan` goes through the chunks of each content with a block of the state's columns in
registers. `_walk` goes down one path with such a block: it never writes a state but where the plan saves one. No program's
arithmetic depends on how many others there are.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.errors import SetupError
from spinf_core.nn.walks import NOWHERE, RecurrencePlan
from spinf_core.stack import CONTENT_TILE, IntArray

STATE_BYTES = 1 << 30
"""What states and inverses of a layer may hold at once; value heads are run in groups that keep to it."""

SCAN_COLUMNS, SCAN_WARPS = 32, 4
WALK_COLUMNS, WALK_WARPS = 32, 2
INVERT_WARPS = 4


@triton.jit
def _decays(g, rows, used, head, V: tl.constexpr):
    """Log decay from the beginning of the chunk to each lane [T]; lanes without a row decay nothing."""
    return tl.cumsum(tl.load(g + rows * V + head, mask=used, other=0.0), 0)


@triton.jit(do_not_specialize=["head0", "heads"])
def _invert(
    k,  # [N, K, DK] float32
    g,  # [N, V] float32
    beta,
    inverse,  # [chunks, heads, T, T]
    chunk_row,  # [chunks]
    chunk_rows,  # [chunks]
    head0,  # the group's first value head
    heads,  # how many it has
    K: tl.constexpr,
    V: tl.constexpr,
    DK: tl.constexpr,
    T: tl.constexpr,
):
    chunk = tl.program_id(0)
    local = tl.program_id(1)
    head = head0 + local
    lanes = tl.arange(0, T)
    count = tl.load(chunk_rows + chunk)
    used = lanes < count
    rows = tl.load(chunk_row + chunk).to(tl.int64) + lanes
    columns = tl.arange(0, DK)
    k_tile = tl.load(k + (rows * K + head // (V // K))[:, None] * DK + columns[None, :], mask=used[:, None], other=0.0)
    decay = _decays(g, rows, used, head, V)
    strength = tl.load(beta + rows * V + head, mask=used, other=0.0)
    # Transposed: column i holds how row i depends on the rows before it.
    before = lanes[:, None] < lanes[None, :]
    between = tl.exp(tl.where(before, decay[None, :] - decay[:, None], float("-inf")))
    mixing = tl.dot(k_tile, tl.trans(k_tile), input_precision="tf32x3") * between * strength[None, :]
    solved = (lanes[:, None] == lanes[None, :]).to(tl.float32)
    for row in range(1, count):
        weights = tl.sum(tl.where(lanes[None, :] == row, mixing, 0.0), 1)
        known = tl.sum(weights[:, None] * solved, 0)
        solved = tl.where(lanes[:, None] == row, solved - known[None, :], solved)
    at = (chunk.to(tl.int64) * heads + local) * T * T
    tl.store(inverse + at + lanes[:, None] * T + lanes[None, :], solved)


@triton.jit(do_not_specialize=["head0", "heads"])
def _scan(
    q,  # [N, K, DK] float32
    k,
    v,  # [N, V, DV] float32
    g,  # [N, V] float32
    beta,
    out,  # [N, V, DV]
    past,  # [R, V, DK, DV]
    states,  # [states, heads, DK, DV]
    inverse,  # [chunks, heads, T, T]
    first,  # [runs] first row
    stop,  # [runs]
    first_chunk,  # [runs]
    origin,  # [runs] row of the past, -1 for zeros
    target,  # [runs] among the states
    answers,  # [runs] whether outputs are written
    head0,
    heads,
    K: tl.constexpr,
    V: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    T: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of the state
):
    run = tl.program_id(0)
    local = tl.program_id(1) // (DV // BLOCK)
    head = head0 + local
    lanes = tl.arange(0, T)
    keys = tl.arange(0, DK)
    values = tl.program_id(1) % (DV // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(first + run)
    end = tl.load(stop + run)
    source = tl.load(origin + run)
    shown = tl.where(tl.load(answers + run) != 0, end, 0)  # rows below are written out
    at = tl.load(first_chunk + run).to(tl.int64)
    inside = keys[:, None] * DV + values[None, :]
    begun = (tl.maximum(source, 0).to(tl.int64) * V + head) * DK * DV
    state = tl.load(past + begun + inside, mask=inside < tl.where(source >= 0, DK * DV, 0), other=0.0)
    rows = start.to(tl.int64) + lanes
    for _ in range(start, end, T):
        used = rows < end
        k_at = (rows * K + head // (V // K))[:, None] * DK + keys[None, :]
        v_at = (rows * V + head)[:, None] * DV + values[None, :]
        k_tile = tl.load(k + k_at, mask=used[:, None], other=0.0)
        v_tile = tl.load(v + v_at, mask=used[:, None], other=0.0)
        decay = _decays(g, rows, used, head, V)
        strength = tl.load(beta + rows * V + head, mask=used, other=0.0)
        reached = tl.exp(decay)[:, None]
        solve = tl.load(inverse + (at * heads + local) * T * T + lanes[:, None] * T + lanes[None, :])
        wanted = strength[:, None] * (v_tile - reached * tl.dot(k_tile, state, input_precision="tf32x3"))
        writes = tl.dot(solve, wanted, input_precision="tf32x3")
        q_tile = tl.load(q + k_at, mask=used[:, None], other=0.0)
        lower = lanes[:, None] >= lanes[None, :]
        between = tl.exp(tl.where(lower, decay[:, None] - decay[None, :], float("-inf")))
        mixing = between * tl.dot(q_tile, tl.trans(k_tile), input_precision="tf32x3")
        outputs = reached * tl.dot(q_tile, state, input_precision="tf32x3")
        outputs += tl.dot(mixing, writes, input_precision="tf32x3")
        tl.store(out + v_at, outputs, mask=(rows < shown)[:, None])
        whole = tl.sum(tl.where(lanes == T - 1, decay, 0.0), 0)
        kept = k_tile * tl.exp(whole - decay)[:, None]
        state = state * tl.exp(whole) + tl.dot(tl.trans(kept), writes, input_precision="tf32x3")
        rows += T
        at += 1
    ended = (tl.load(target + run).to(tl.int64) * heads + local) * DK * DV
    tl.store(states + ended + inside, state)


@triton.jit(do_not_specialize=["head0", "heads"])
def _walk(
    q,  # [N, K, DK] float32
    k,
    v,  # [N, V, DV] float32
    g,  # [N, V] float32
    beta,
    out,  # [N, V, DV]
    states,  # [states, heads, DK, DV]
    path_rows,  # rows of the pass, walk by walk, and one more number
    start,  # [walks] first entry of path_rows
    own,  # [walks] first entry whose output is written
    stop,  # [walks]
    source,  # [walks] among the states
    target,  # [walks] among the states, -1 for none
    head0,
    heads,
    K: tl.constexpr,
    V: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of the state
):
    walk = tl.program_id(0)
    local = tl.program_id(1) // (DV // BLOCK)
    head = head0 + local
    keys = tl.arange(0, DK)
    values = tl.program_id(1) % (DV // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    inside = keys[:, None] * DV + values[None, :]
    first = tl.load(start + walk)
    end = tl.load(stop + walk)
    answered = tl.load(own + walk)
    begun = (tl.load(source + walk).to(tl.int64) * heads + local) * DK * DV
    state = tl.load(states + begun + inside)
    row = tl.load(path_rows + first).to(tl.int64)
    for at in range(first, end):
        following = tl.load(path_rows + at + 1).to(tl.int64)
        k_at = (row * K + head // (V // K)) * DK + keys
        v_at = (row * V + head) * DV + values
        k_row = tl.load(k + k_at)[:, None]
        q_row = tl.load(q + k_at)[:, None]
        v_row = tl.load(v + v_at)
        decay = tl.exp(tl.load(g + row * V + head))
        strength = tl.load(beta + row * V + head)
        state = state * decay
        read = tl.sum(state * k_row, 0)
        state = state + k_row * (strength * (v_row - read))[None, :]
        tl.store(out + v_at, tl.sum(state * q_row, 0), mask=values < tl.where(at >= answered, DV, 0))
        row = following
    ended = tl.load(target + walk)
    place = (tl.maximum(ended, 0).to(tl.int64) * heads + local) * DK * DV
    tl.store(states + place + inside, state, mask=inside < tl.where(ended >= 0, DK * DV, 0))


@attrs.frozen(eq=False)
class _Tables:
    """A plan on the device: chunks, runs, and walks level by level, each as the kernels' arguments name them."""

    chunk: tuple[Tensor, ...]
    run: tuple[Tensor, ...]
    rows: Tensor
    levels: tuple[tuple[Tensor, ...], ...]


class TritonTreeDelta:
    """The rule of one pass. See `spinf_core.nn.delta.TreeDelta`.

    Raises, when called:
        SetupError: for head widths that are not powers of two from 16 on.
    """

    def __init__(self, plan: RecurrencePlan, device: torch.device) -> None:
        self._plan = plan
        self._tables = _tables(plan, device)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `TreeDelta`."""
        plan = self._plan
        value_heads, key_width, value_width = v.shape[1], k.shape[2], v.shape[2]
        check_widths(key_width, value_width)
        q, k, v, g, beta = (each.contiguous() for each in (q, k, v, g, beta))
        out = torch.zeros_like(v)
        kept = None if plan.kept is None else v.new_empty(len(plan.kept), value_heads, key_width, value_width)
        kept_index = None if plan.kept is None else torch.as_tensor(plan.kept, dtype=torch.int64, device=v.device)
        each_head = 4 * (plan.states * key_width * value_width + len(self._tables.chunk[0]) * CONTENT_TILE**2)
        step = min(value_heads, max(1, STATE_BYTES // max(each_head, 1)))
        for head0 in range(0, value_heads, step):
            heads = min(step, value_heads - head0)
            states = self._start(v, key_width, past, slice(head0, head0 + heads))
            self._run(q, k, v, g, beta, out, states, past, head0, heads)
            if kept is not None and kept_index is not None:
                kept[:, head0 : head0 + heads] = states.index_select(0, kept_index)
        return out, kept

    def _start(self, v: Tensor, key_width: int, past: Tensor | None, heads: slice) -> Tensor:
        """[states, heads, Dk, Dv] of a group, before anything runs."""
        from spinf_core.nn.delta import start_states

        return start_states(self._plan, v[:, heads], key_width, None if past is None else past[:, heads])

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
            _invert[chunks, heads](
                k, g, beta, inverse, *tables.chunk, head0, heads, **shape, T=CONTENT_TILE, num_warps=INVERT_WARPS
            )
            block = min(SCAN_COLUMNS, value_width)
            _scan[runs, heads * (value_width // block)](
                q,
                k,
                v,
                g,
                beta,
                out,
                states if past is None else past,
                states,
                inverse,
                *tables.run,
                head0,
                heads,
                **shape,
                DV=value_width,
                T=CONTENT_TILE,
                BLOCK=block,
                num_warps=SCAN_WARPS,
                num_stages=1,
            )
        block = min(WALK_COLUMNS, value_width)
        for walks in tables.levels:
            _walk[len(walks[0]), heads * (value_width // block)](
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
            raise SetupError(f"gated delta heads of width {width} are not run on a GPU, only powers of two from 16 on; run on cpu")


def _tables(plan: RecurrencePlan, device: torch.device) -> _Tables:
    """Everything in one transfer."""
    runs = plan.runs
    counts = -(-(runs.stop - runs.first) // CONTENT_TILE)
    first_chunk = np.cumsum(counts) - counts
    chunk_row = np.repeat(runs.first - first_chunk * CONTENT_TILE, counts) + np.arange(counts.sum()) * CONTENT_TILE
    chunk_rows = np.minimum(np.repeat(runs.stop, counts) - chunk_row, CONTENT_TILE)
    parts: list[list[IntArray]] = [
        [chunk_row, chunk_rows],
        [runs.first, runs.stop, first_chunk, runs.origin, runs.target, runs.answers],
        [np.append(plan.rows, NOWHERE)],
        *([walks.start, walks.own, walks.stop, walks.source, walks.target] for walks in plan.levels),
    ]
    flat = torch.from_numpy(np.concatenate([each for part in parts for each in part]).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = iter(flat.split([len(each) for part in parts for each in part]))
    chunk, run, (rows,), *levels = (tuple(next(pieces) for _ in part) for part in parts)
    return _Tables(chunk, run, rows, tuple(levels))
