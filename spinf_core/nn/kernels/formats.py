"""How kernels write the format that the linear behind them wants; see `InputFormat`."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from spinf_core.nn.linear import InputFormat

AS_IT_IS, DIVIDED, MULTIPLIED = 0, 1, 2


def scaling(output: InputFormat | None) -> tuple[float, int]:
    """The number and the way by which `stored` scales: a product with the reciprocal where that is exact, for it is quicker."""
    if output is None or output.scale is None:
        return 1.0, AS_IT_IS
    mantissa, exponent = math.frexp(output.scale)
    if mantissa == 0.5 and abs(exponent) < 100:
        return 1.0 / output.scale, MULTIPLIED
    return output.scale, DIVIDED


@triton.jit
def stored(x, scale, dtype: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr):
    """x, any float dtype, in `dtype`: unless it is left as it is, scaled and clamped first. See `scaling`."""
    if SCALED == 1:
        x = tl.div_rn(x.to(tl.float32), tl.zeros_like(x).to(tl.float32) + scale)
    elif SCALED == 2:
        x = x.to(tl.float32) * scale
    if SCALED > 0:
        # As torch clamps: what is not a number stays so, or a broken pass would give scores that look sound.
        x = tl.maximum(x, -LARGEST, propagate_nan=tl.PropagateNan.ALL)
        x = tl.minimum(x, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)
