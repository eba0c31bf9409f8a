"""The gated delta rule in Triton (see `spinf_core.nn.delta`): contents in chunks, paths row by row with the state on chip.

Three kernels. `_prepare` works out, for each chunk and value head, the inverse of the chunk's triangular system by forward
substitution, and how its rows see one another, for all chunks at once. `_scan` goes through the chunks of each content for a
block of the state's columns, which stay in the nearest cache. `_walk` goes down one path with such a block in registers: it
never writes a state but where the plan saves one. No program's arithmetic depends on how many others there are.
"""

from __future__ import annotations

from itertools import islice

import attrs
import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spinf_core.errors import SetupError
from spinf_core.nn.delta import start_states
from spinf_core.nn.walks import RecurrencePlan
from spinf_core.stack import CONTENT_TILE, IntArray

STATE_BYTES = 1 << 30
"""What states and inverses of a layer may hold at once; value heads are run in groups that keep to it."""

# Tile sizes: the quickest of those that tests/gpu/qwen_speed.py --sweep tries, on an H200.
PREPARE_PART, PREPARE_WARPS = 16, 2
SCAN_COLUMNS, SCAN_PART, SCAN_WARPS = 64, 64, 4
WALK_COLUMNS, WALK_WARPS = 32, 1


@triton.jit
def _decays(g, rows, used, head, V: tl.constexpr):
    """Log decay from the beginning of the chunk to each lane [T]; lanes without a row decay nothing."""
    return tl.cumsum(tl.load(g + rows * V + head, mask=used, other=0.0), 0)


@triton.jit(do_not_specialize=["head0", "heads"])
def _prepare(
    q,  # [N, K, DK] float32
    k,
    g,  # [N, V] float32
    beta,
    inverse,  # [chunks, heads, T, T]
    seen,  # [chunks, heads, T, T] decayed products of queries and keys
    chunk_row,  # [chunks]
    chunk_rows,  # [chunks]
    head0,  # the group's first value head
    heads,  # how many it has
    K: tl.constexpr,
    V: tl.constexpr,
    DK: tl.constexpr,
    T: tl.constexpr,
    PART: tl.constexpr,  # columns of the keys that are worked on at once
):
    chunk = tl.program_id(0)
    first = tl.program_id(1) * (V // K)  # of the value heads that share a key head
    lanes = tl.arange(0, T)
    count = tl.load(chunk_rows + chunk)
    used = lanes < count
    rows = tl.load(chunk_row + chunk).to(tl.int64) + lanes
    k_at = (rows * K + (head0 + first) // (V // K))[:, None] * DK + tl.arange(0, PART)[None, :]
    k_k = tl.zeros((T, T), tl.float32)
    q_k = tl.zeros((T, T), tl.float32)
    for part in range(0, DK, PART):
        k_tile = tl.load(k + k_at + part, mask=used[:, None], other=0.0)
        q_tile = tl.load(q + k_at + part, mask=used[:, None], other=0.0)
        k_k += tl.dot(k_tile, tl.trans(k_tile), input_precision="tf32x3")
        q_k += tl.dot(q_tile, tl.trans(k_tile), input_precision="tf32x3")
    lower = lanes[:, None] >= lanes[None, :]
    square = lanes[:, None] * T + lanes[None, :]
    for local in range(first, first + V // K):
        at = (chunk.to(tl.int64) * heads + local) * T * T
        decay = _decays(g, rows, used, head0 + local, V)
        between = tl.exp(tl.where(lower, decay[:, None] - decay[None, :], float("-inf")))
        tl.store(seen + at + square, q_k * between)
        # How a row depends on those before it: kept where the inverse will be, to be read row by row.
        strength = tl.load(beta + rows * V + head0 + local, mask=used, other=0.0)
        tl.store(inverse + at + square, k_k * between * strength[:, None])
    tl.debug_barrier()  # what other threads of this program have stored
    for local in range(first, first + V // K):
        at = (chunk.to(tl.int64) * heads + local) * T * T
        solved = (lanes[:, None] == lanes[None, :]).to(tl.float32)
        for row in range(1, count):
            weights = tl.load(inverse + at + row * T + lanes, mask=lanes < row, other=0.0)
            known = tl.sum(weights[:, None] * solved, 0)
            solved = tl.where(lanes[:, None] == row, solved - known[None, :], solved)
        tl.debug_barrier()  # every thread has read what is overwritten now
        tl.store(inverse + at + square, solved)


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
    seen,
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
    PART: tl.constexpr,  # rows of it that are worked on at once
):
    run = tl.program_id(0)
    local = tl.program_id(1) // (DV // BLOCK)
    head = head0 + local
    lanes = tl.arange(0, T)
    parts = tl.arange(0, PART)
    values = tl.program_id(1) % (DV // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    inside = parts[:, None] * DV + values[None, :]
    end = tl.load(stop + run)
    rows = tl.load(first + run).to(tl.int64) + lanes
    shown = tl.where(tl.load(answers + run) != 0, end, 0)  # rows below are written out
    source = tl.load(origin + run)
    begun = past + (tl.maximum(source, 0).to(tl.int64) * V + head) * DK * DV
    state = states + (tl.load(target + run).to(tl.int64) * heads + local) * DK * DV
    for part in range(0, DK, PART):
        known = tl.load(begun + part * DV + inside, mask=inside < tl.where(source >= 0, PART * DV, 0), other=0.0)
        tl.store(state + part * DV + inside, known)
    chunk = (tl.load(first_chunk + run).to(tl.int64) * heads + local) * T * T + lanes[:, None] * T + lanes[None, :]
    for _ in range(tl.load(first + run), end, T):
        tl.debug_barrier()  # what other threads of this program have stored of the state
        used = (rows < end)[:, None]
        decay = _decays(g, rows, rows < end, head, V)
        strength = tl.load(beta + rows * V + head, mask=rows < end, other=0.0)
        k_at = (rows * K + head // (V // K))[:, None] * DK + parts[None, :]
        v_at = (rows * V + head)[:, None] * DV + values[None, :]
        k_state = tl.zeros((T, BLOCK), tl.float32)
        q_state = tl.zeros((T, BLOCK), tl.float32)
        for part in range(0, DK, PART):
            s_tile = tl.load(state + part * DV + inside)
            k_tile = tl.load(k + k_at + part, mask=used, other=0.0)
            q_tile = tl.load(q + k_at + part, mask=used, other=0.0)
            k_state += tl.dot(k_tile, s_tile, input_precision="tf32x3")
            q_state += tl.dot(q_tile, s_tile, input_precision="tf32x3")
        reached = tl.exp(decay)[:, None]
        wanted = strength[:, None] * (tl.load(v + v_at, mask=used, other=0.0) - reached * k_state)
        writes = tl.dot(tl.load(inverse + chunk), wanted, input_precision="tf32x3")
        outputs = reached * q_state + tl.dot(tl.load(seen + chunk), writes, input_precision="tf32x3")
        tl.store(out + v_at, outputs, mask=(rows < shown)[:, None])
        whole = tl.sum(tl.where(lanes == T - 1, decay, 0.0), 0)
        to_end = tl.exp(whole - decay)[:, None]
        tl.debug_barrier()  # every thread has read the state
        for part in range(0, DK, PART):
            kept = tl.load(k + k_at + part, mask=used, other=0.0) * to_end
            added = tl.dot(tl.trans(kept), writes, input_precision="tf32x3")
            tl.store(state + part * DV + inside, tl.load(state + part * DV + inside) * tl.exp(whole) + added)
        rows += T
        chunk += heads * T * T


@triton.jit(do_not_specialize=["head0", "heads"])
def _walk(
    q,  # [N, K, DK] float32
    k,
    v,  # [N, V, DV] float32
    g,  # [N, V] float32
    beta,
    out,  # [N, V, DV]
    states,  # [states, heads, DK, DV]
    path_rows,  # rows of the pass, walk by walk, and one more
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
    # A row's numbers are asked for while the row before it is worked on.
    row = tl.load(path_rows + first).to(tl.int64)
    k_next = tl.load(k + (row * K + head // (V // K)) * DK + keys)
    q_next = tl.load(q + (row * K + head // (V // K)) * DK + keys)
    v_next = tl.load(v + (row * V + head) * DV + values)
    g_next = tl.load(g + row * V + head)
    beta_next = tl.load(beta + row * V + head)
    for at in range(first, end):
        k_row, q_row, v_row, decay, strength = k_next, q_next, v_next, tl.exp(g_next), beta_next
        out_at = (row * V + head) * DV + values
        row = tl.load(path_rows + at + 1).to(tl.int64)
        k_next = tl.load(k + (row * K + head // (V // K)) * DK + keys)
        q_next = tl.load(q + (row * K + head // (V // K)) * DK + keys)
        v_next = tl.load(v + (row * V + head) * DV + values)
        g_next = tl.load(g + row * V + head)
        beta_next = tl.load(beta + row * V + head)
        state = state * decay
        read = tl.sum(state * k_row[:, None], 0)
        state = state + k_row[:, None] * (strength * (v_row - read))[None, :]
        tl.store(out + out_at, tl.sum(state * q_row[:, None], 0), mask=values < tl.where(at >= answered, DV, 0))
    ended = tl.load(target + walk)
    place = (tl.maximum(ended, 0).to(tl.int64) * heads + local) * DK * DV
    tl.store(states + place + inside, state, mask=inside < tl.where(ended >= 0, DK * DV, 0))


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
            _prepare[chunks, heads * key_heads // value_heads](
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
