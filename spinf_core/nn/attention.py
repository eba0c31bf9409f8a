"""Tree attention on the CPU: every row against its own path, and nothing else.

softmax(q kᵀ · scale) v (Vaswani et al. 2017, eq. 1) over a row's content and its own path after the cut, computed in two parts
that are joined by their log-sum-exps (Dao et al. 2022, «FlashAttention», section 3.1). Each part runs torch's CPU flash kernel
on tiles whose shape and lane follow from the row's depth alone (see `layout`), so that a row's bits do not depend on what else
is in the pass. Grouped query heads are folded into the lanes of a tile: their keys are read once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spinf_core.nn.activation import sigmoid
from spinf_core.nn.layout import PATH_TILE, BranchRows, Tiles, TreeLayout
from spinf_core.stack import CONTENT_TILE

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class TreeAttention:
    """The attention of one pass over its layers; holds the masks that the layers share.

    Args:
        layout: of the pass.
    """

    def __init__(self, layout: TreeLayout) -> None:
        self.layout = layout
        self._masks: dict[tuple[int, int, int | None, torch.dtype], Tensor] = {}

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int | None = None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q: [N, H, D] rotated queries.
            k, v: [N, K, D] rotated keys, and values; H is a multiple of K.
            scale: of the products.
            window: rows see only rows less than this far before them in depth; None: all.
            past: keys and values [P, K, D] of the stored rows.

        Returns:
            [N, H, D]; zeros on padding rows.
        """
        zeros = k.new_zeros(1, *k.shape[1:])
        keys = torch.cat((k, zeros) if past is None else (past[0], k, zeros))
        values = torch.cat((v, zeros) if past is None else (past[1], v, zeros))
        out = q.new_zeros(q.shape)
        for tiles in self.layout.content:
            rows_out, _ = self._tile(q, keys, values, tiles, CONTENT_TILE, scale, window)
            out.index_copy_(0, tiles.rows, rows_out)
        path_lse = q.new_zeros(q.shape[:2], dtype=torch.float32)
        for tiles in self.layout.paths:
            rows_out, lse = self._tile(q, keys, values, tiles, PATH_TILE, scale, window)
            out.index_copy_(0, tiles.rows, rows_out)
            path_lse.index_copy_(0, tiles.rows, lse)

        content_out = torch.zeros_like(out)
        content_lse = torch.full_like(path_lse, -math.inf)
        for rows in self.layout.branches:
            span = slice(rows.start, rows.stop)
            content_out[span], content_lse[span] = self._branches(q, keys, values, rows, scale, window)
        share = sigmoid(content_lse - path_lse)[..., None]
        return torch.lerp(out.float(), content_out.float(), share).to(out.dtype)

    def _tile(
        self, q: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, width: int, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Tiles whose last `width` keys are the lanes themselves: lane i sees keys up to its own."""
        group = q.shape[1] // keys.shape[1]
        mask = self._causal_mask(width, group, tiles.key_count, window, q.dtype)
        out, lse = _attend(q, keys, values, tiles.queries, tiles.keys, tiles.key_count, width, scale, mask)
        return out.index_select(0, tiles.lanes), lse.index_select(0, tiles.lanes)

    def _branches(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: BranchRows, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Rows after the cut against all of their content that lies within the window."""
        mask = hidden = None
        if window is not None and int(rows.depth.max()) >= window:
            group = q.shape[1] // keys.shape[1]
            first = rows.depth - window  # the last key that a lane does not see
            unseen = torch.arange(rows.key_count, device=q.device) <= first[:, None]
            mask = torch.zeros(unseen.shape, dtype=q.dtype, device=q.device).masked_fill_(unseen, -math.inf)
            mask = mask.view(-1, 1, CONTENT_TILE, rows.key_count).repeat(1, 1, group, 1)
            hidden = first >= rows.key_count - 1
        out, lse = _attend(q, keys, values, rows.queries, rows.keys, rows.key_count, CONTENT_TILE, scale, mask)
        if hidden is not None:
            lse = lse.masked_fill(hidden[:, None], -math.inf)  # the kernel answers 0 for a row that sees no key
        count = rows.stop - rows.start
        return out[:count], lse[:count]

    def _causal_mask(self, width: int, group: int, key_count: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[group · width, key_count]: 0 where lane i sees a key, −inf elsewhere; the last `width` keys are the lanes."""
        name = (width, group, window, dtype)
        mask = self._masks.get(name)
        if mask is None or mask.shape[1] < key_count:
            longest = max(tiles.key_count for tiles in (*self.layout.content, *self.layout.paths))
            behind = torch.arange(width, device=self.layout.device)[:, None] - torch.arange(
                width - longest, width, device=self.layout.device
            )
            unseen = behind < 0 if window is None else (behind < 0) | (behind >= window)
            mask = torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, -math.inf)
            self._masks[name] = mask = mask.repeat(group, 1)
        return mask[:, mask.shape[1] - key_count :]


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    index: Tensor | int,
    key_count: int,
    width: int,
    scale: float,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Flash attention of B tiles of `width` lanes: out [B·width, H, D] and the log-sum-exps [B·width, H]."""
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    batch = len(queries) // width
    lanes = q.index_select(0, queries).view(batch, width, kv_heads, group, head_dim)
    lanes = lanes.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * width, head_dim)

    def read(source: Tensor) -> Tensor:
        some = source[index:][:key_count] if isinstance(index, int) else source.index_select(0, index.view(-1))
        return some.view(-1, key_count, kv_heads, head_dim).transpose(1, 2).expand(batch, -1, -1, -1)

    out, lse = _flash(lanes, read(keys), read(values), 0.0, False, attn_mask=mask, scale=scale)
    out = out.view(batch, kv_heads, group, width, head_dim).permute(0, 3, 1, 2, 4)
    lse = lse.view(batch, kv_heads, group, width).permute(0, 3, 1, 2)
    return out.reshape(batch * width, heads, head_dim), lse.reshape(batch * width, heads)
