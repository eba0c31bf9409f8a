"""The gated delta rule in Triton (see `spinf_core.nn.delta`): contents in chunks, paths row by row with the state on chip.

`tree_delta` launches them. No program's arithmetic depends on how many others there are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _decays(g, rows, used, head, V: tl.constexpr):
    """Log decay from the beginning of the chunk to each lane [T]; lanes without a row decay nothing."""
    return tl.cumsum(tl.load(g + rows * V + head, mask=used, other=0.0), 0)


@triton.jit(do_not_specialize=["head0", "heads"])
def prepare_chunks(
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
    """For each chunk and value head: the inverse of the chunk's triangular system, by forward substitution, and how its rows
    see one another. All chunks at once; a program has a chunk and the value heads of a key head."""
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
def scan_contents(
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
    """The chunks of a content one after another, for a block of the state's columns, which stay in the nearest cache."""
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
def walk_paths(
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
    """Down one path, with a block of the state's columns in registers; a state is written only where the plan saves one."""
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
