"""Between the projections and attention: queries, keys and values by head, normed and turned."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spinf_core.nn.norm import RMSNorm
from spinf_core.nn.rotary import Rotary, rotate


def turned_heads(
    projections: tuple[Tensor, ...],
    head_dim: int,
    tables: tuple[Tensor, Tensor],
    q_norm: RMSNorm | None = None,
    k_norm: RMSNorm | None = None,
    v_norm: RMSNorm | None = None,
) -> tuple[Tensor, ...]:
    """Norm each head where there is a norm, and turn queries and keys by their positions.

    Args:
        projections: q [N, H·D] alone; q and k [N, K·D], whose keys are the values too; or q, k and v.
        head_dim: D. tables: of `head_tables`.

    Returns:
        q [N, H, D], or q, k, v.
    """
    q, *others = (each.view(len(each), -1, head_dim) for each in projections)
    keys_values = (others[0], others[-1]) if others else None
    if q.is_cuda:
        from spinf_core.nn.kernels import rows

        norms = [norm.parameters if norm else None for norm in (q_norm, k_norm, v_norm)]
        turned = rows.turned_heads(q, keys_values, (norms[0], norms[1], norms[2]), tables)
        return turned if others else turned[:1]
    q = rotate(q_norm(q) if q_norm else q, tables)
    if keys_values is None:
        return (q,)
    k, v = keys_values
    return q, rotate(k_norm(k) if k_norm else k, tables), v_norm(v) if v_norm else v


def head_tables(rotary: Rotary, positions: Tensor | np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of each row's angles for `turned_heads`: float32 where kernels round once, else in the model's `dtype`."""
    return rotary.tables(positions, torch.float32 if rotary.device.type == "cuda" else dtype)
