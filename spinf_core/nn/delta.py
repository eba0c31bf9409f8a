"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, «Gated Delta Networks», eq. 10) on contents and on tries.

With decay α = exp(g), the state S [Dk, Dv] of a head and its output follow
    S ← α S + k (β (v − kᵀ α S))ᵀ,   o = Sᵀ q.
A content runs in chunks of `CONTENT_TILE` counted from depth 0; a row after the cut runs the recurrence along its own path,
from the state at the cut. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.walks import RecurrencePlan, Walks
from spinf_core.stack import CONTENT_TILE, IntArray

WALK_BYTES = 1 << 22  # of states that walks hold at once on the CPU: about what stays in its caches


class TreeDelta(Protocol):
    """The gated delta rule of one pass's layers: every row along its own path, and nothing else."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run it.

        Args:
            q, k: [N, K, Dk] float32, normed as the model wants it.
            v: [N, V, Dv] float32; V is a multiple of K, and V / K consecutive value heads share a key head.
            g: [N, V] float32 log decay. beta: [N, V] float32.
            past: [R, V, Dk, Dv] states of the kept rows of the past.

        Returns:
            outputs [N, V, Dv] float32, zeros on padding rows; and the states of the rows to keep [K, V, Dk, Dv], None where
            none were asked for.
        """
        ...


def tree_delta(layout: TreeLayout, keep: Sequence[int] | IntArray | None = None) -> TreeDelta:
    """The rule for one pass, by the kernels of its device.

    Args:
        layout: of the pass.
        keep: rows of the pass whose states are wanted.
    """
    plan = RecurrencePlan.build(layout, keep)
    if layout.device.type == "cpu":
        return TorchTreeDelta(plan)
    from spinf_core.nn.kernels.tree_delta import TritonTreeDelta

    return TritonTreeDelta(plan, layout.device)


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


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One row of each of W paths: q, k [W, H, Dk], v [W, H, Dv], g, beta [W, H]; outputs [W, H, Dv].

    `state` [W, H, Dk, Dv], of the rows before, becomes that of these rows.
    """
    state *= g.exp()[..., None, None]
    read = _sum_keys(state * k[..., None])
    state += k[..., None] * (beta[..., None] * (v - read))[..., None, :]
    return _sum_keys(state * q[..., None])


def _sum_keys(products: Tensor) -> Tensor:
    """[…, Dk, Dv] -> […, Dv] in a fixed order, which torch's own sum does not promise; `products` is used up."""
    left = products.shape[-2]
    while left > 1:
        half = left - left // 2
        products[..., : left // 2, :] += products[..., half:left, :]
        left = half
    return products[..., 0, :]


class TorchTreeDelta:
    """The rule of one pass in plain torch: a run over each content, then all walks of a level side by side. See `TreeDelta`."""

    def __init__(self, plan: RecurrencePlan) -> None:
        self._plan = plan

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `TreeDelta`."""
        plan, group = self._plan, v.shape[1] // k.shape[1]
        q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        out = torch.zeros_like(v)
        states = start_states(plan, v, k.shape[2], past)
        runs = plan.runs
        for first, stop, origin, target, answers in zip(
            runs.first, runs.stop, runs.origin, runs.target, runs.answers, strict=True
        ):
            before = torch.zeros_like(states[target]) if past is None or origin < 0 else past[origin]
            some = slice(first, stop)
            outputs, states[target] = chunked_delta_rule(q[some], k[some], v[some], g[some], beta[some], before)
            if answers:
                out[first:stop] = outputs
        for walks in plan.levels:
            self._walk(walks, (q, k, v, g, beta), states, out)
        return out, None if plan.kept is None else states[torch.as_tensor(plan.kept, dtype=torch.int64)]

    def _walk(self, walks: Walks, terms: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], states: Tensor, out: Tensor) -> None:
        q, k, v, g, beta = terms
        length = walks.stop - walks.start
        order = np.argsort(-length, kind="stable")  # those still under way are the first
        step = max(1, WALK_BYTES // (states[0].numel() * states.element_size()))
        for some in np.split(order, range(step, len(order), step)):
            state = states[torch.as_tensor(walks.source[some], dtype=torch.int64)]
            for number in range(int(length[some[0]])):
                live = some[length[some] > number]
                at = walks.start[live] + number
                rows = torch.as_tensor(self._plan.rows[at], dtype=torch.int64)
                values = delta_step(q[rows], k[rows], v[rows], g[rows], beta[rows], state[: len(live)])
                own = torch.as_tensor(at >= walks.own[live])
                out[rows[own]] = values[own]
            saving = np.flatnonzero(walks.target[some] >= 0)
            states[torch.as_tensor(walks.target[some][saving], dtype=torch.int64)] = state[torch.as_tensor(saving)]


def start_states(plan: RecurrencePlan, v: Tensor, key_width: int, past: Tensor | None) -> Tensor:
    """[states, V, Dk, Dv] before anything runs: zeros, and what jobs without a content in the pass begin with."""
    states = v.new_zeros(plan.states, v.shape[1], key_width, v.shape[2])
    jobs = np.flatnonzero(plan.bases >= 0)
    if past is not None and len(jobs):
        index, base = (torch.as_tensor(each, dtype=torch.int64, device=v.device) for each in (jobs, plan.bases[jobs]))
        states.index_copy_(0, index, past.index_select(0, base))
    return states
