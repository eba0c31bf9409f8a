"""How kernels write the format that the linear behind them wants; see `InputFormat`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stored(x, scale, dtype: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr):
    """x, any float dtype, in `dtype`: where `SCALED` divided by the scale and clamped first."""
    if SCALED:
        divided = tl.div_rn(x.to(tl.float32), tl.zeros_like(x).to(tl.float32) + scale)
        x = tl.minimum(tl.maximum(divided, -LARGEST), LARGEST)
    return x.to(dtype)
