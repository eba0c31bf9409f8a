"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, «Gated Delta Networks», eq. 10) on contents and on tries.

With decay α = exp(g), the state S [Dk, Dv] of a head and its output follow
    S ← α S + k (β (v − kᵀ α S))ᵀ,   o = Sᵀ q.
A content runs in chunks of `CONTENT_TILE` counted from depth 0; a row after the cut runs the recurrence from its parent's
state. Everything is float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spinf_core.nn.layout import TreeLayout
from spinf_core.stack import CONTENT_TILE


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run L consecutive rows in chunks (the WY form: Yang et al. 2024, section 3.3).

    Args:
        q, k: [L, H, Dk]; v: [L, H, Dv]; g (log decay), beta: [L, H].
        state: [H, Dk, Dv] before the first row.

    Returns:
        outputs [L, H, Dv] and the state after the last row.
    """
    length = len(q)
    pad = -length % CONTENT_TILE

    def chunks(x: Tensor) -> Tensor:  # -> [chunks, H, CONTENT_TILE, …]; padding rows neither write nor decay
        padded = torch.cat((x, x.new_zeros(pad, *x.shape[1:])))
        return padded.view(-1, CONTENT_TILE, *x.shape[1:]).transpose(1, 2)

    lower = torch.ones(CONTENT_TILE, CONTENT_TILE, dtype=torch.bool, device=q.device).tril()
    identity = torch.eye(CONTENT_TILE, device=q.device)
    outputs = []
    for qc, kc, vc, gc, bc in zip(chunks(q), chunks(k), chunks(v), chunks(g), chunks(beta), strict=True):
        decay = gc.cumsum(-1)  # [H, T]
        between = (decay[:, :, None] - decay[:, None, :]).masked_fill(~lower, -torch.inf).exp()  # [H, T, T]
        mixing = (bc[:, :, None] * between * (kc @ kc.mT)).tril(-1)
        wanted = bc[..., None] * (vc - decay.exp()[..., None] * (kc @ state))
        writes = torch.linalg.solve_triangular(identity + mixing, wanted, upper=False, unitriangular=True)
        outputs.append(decay.exp()[..., None] * (qc @ state) + (between * (qc @ kc.mT)) @ writes)
        to_end = (decay[:, -1:] - decay).exp()[..., None]
        state = decay[:, -1].exp()[:, None, None] * state + (kc * to_end).mT @ writes
    return torch.cat([out.transpose(0, 1) for out in outputs])[:length], state


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row of each of R paths: q, k [R, H, Dk], v [R, H, Dv], g, beta [R, H], state [R, H, Dk, Dv] of their parents."""
    state = g.exp()[..., None, None] * state
    read = (state * k[..., None]).sum(-2)
    state = state + k[..., None] * (beta[..., None] * (v - read))[..., None, :]
    return (state * q[..., None]).sum(-2), state


def tree_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    layout: TreeLayout,
    past: Tensor | None = None,
    keep: np.ndarray | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Every row of a pass along its own path.

    Args:
        q, k, v, g, beta: as in `chunked_delta_rule`, over the N rows of the pass.
        past: [R, H, Dk, Dv] states of the kept rows of the past.
        keep: rows of the pass whose state is wanted. A row inside a content that does not end a tile is worked out by a
            second run over the content up to it.

    Returns:
        outputs [N, H, Dv], zeros on padding rows, and the states of `keep` [K, H, Dk, Dv].
    """
    pass_ = layout.pass_
    out = torch.zeros_like(v)
    wanted = {} if keep is None else {int(row): number for number, row in enumerate(keep)}
    kept = None if keep is None else v.new_empty(len(keep), v.shape[1], k.shape[2], v.shape[2])
    start_state = v.new_zeros(len(pass_.segments), v.shape[1], k.shape[2], v.shape[2])
    for job, (start, cut_row, _) in enumerate(pass_.segments):
        if past is not None and pass_.base[job] >= 0:
            start_state[job] = past[pass_.base[job]]
        if cut_row > start:
            rows = slice(start, cut_row)
            before = start_state[job].clone()
            out[rows], start_state[job] = chunked_delta_rule(q[rows], k[rows], v[rows], g[rows], beta[rows], before)
            for row in wanted.keys() & set(range(start, cut_row)):
                some = slice(start, row + 1)
                _, state = chunked_delta_rule(q[some], k[some], v[some], g[some], beta[some], before)
                assert kept is not None
                kept[wanted[row]] = state

    after = np.concatenate([np.arange(cut_row, stop) for _, cut_row, stop in pass_.segments] or [np.empty(0, int)])
    level = _levels(after, pass_.parent)
    states = start_state
    place = np.zeros(layout.rows, np.int64)  # of a row's state among those of its level
    for number in range(int(level.max(initial=-1)) + 1):
        rows = after[level == number]
        origin = pass_.job[rows] if number == 0 else place[pass_.parent[rows]]
        index = torch.as_tensor(rows, device=q.device)
        before = states.index_select(0, torch.as_tensor(origin, dtype=torch.int64, device=q.device))
        values, states = delta_step(q[index], k[index], v[index], g[index], beta[index], before)
        out[index] = values
        place[rows] = np.arange(len(rows))
        for row in wanted.keys() & set(rows.tolist()):
            assert kept is not None
            kept[wanted[row]] = states[place[row]]
    return out, kept


def _levels(after: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """How many rows after the cut lie before each on its path within the pass."""
    is_after = np.zeros(len(parent), bool)
    is_after[after] = True
    level = np.zeros(len(after), np.int64)
    at = parent[after]
    live = np.flatnonzero((at >= 0) & is_after[at])
    while len(live):
        level[live] += 1
        at[live] = parent[at[live]]
        live = live[(at[live] >= 0) & is_after[at[live]]]
    return level
