"""Tree attention: every row against its own path, and nothing else."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.linear import InputFormat

Blocks = Literal["apart", "windowed", "whole"]
"""What the rows of a block see of it: `apart`, each what lies before it, as if there were no blocks; else all of it, `windowed`
but for what a window hides before them, `whole` without exception."""


class TreeAttention(Protocol):
    """softmax(q kᵀ · scale) v (Vaswani et al. 2017, eq. 1) over each row's content and its own path, for one pass's layers."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int | None = None,
        blocks: Blocks = "apart",
        softcap: float | None = None,
        past: tuple[Tensor, Tensor] | None = None,
        output: InputFormat | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q: [N, H, D] rotated queries.
            k, v: [N, K, D] rotated keys, and values; H is a multiple of K.
            scale: of the products.
            window: rows see only rows less than this far before them in depth; None: all.
            blocks: what rows see of their block.
            softcap: c of c · tanh(scores / c), which softmax is taken of (Gemma 2 report, section 2); None: of the scores.
            past: keys and values [P, K, D] of the stored rows.
            output: the format that the linear behind wants; None: the queries' own dtype.

        Returns:
            [N, H, D] in that format; zeros on padding rows.
        """
        ...


def tree_attention(layout: TreeLayout) -> TreeAttention:
    """The attention of one pass, by the kernels of its device."""
    if layout.device.type == "cpu":
        from spinf_core.nn.cpu_attention import TiledTreeAttention

        return TiledTreeAttention(layout)
    from spinf_core.nn.kernels.tree_attention import TritonTreeAttention

    return TritonTreeAttention.of(layout)
