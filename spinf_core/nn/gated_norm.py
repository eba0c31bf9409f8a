"""The gated norm behind recurrent layers: each head normed, then multiplied by a gate."""

from __future__ import annotations

from torch import Tensor

from spinf_core.nn.activation import silu
from spinf_core.nn.linear import InputFormat, write
from spinf_core.nn.norm import RMSNorm


class GatedRMSNorm:
    """x / sqrt(mean(x²) + eps) · weight · silu(gate) over each head, in float32 (Yang et al. 2024, section 3.4).

    Args:
        weight: [D].
        eps: added to the mean of squares.
        output: the format that the linear behind wants.
    """

    def __init__(self, weight: Tensor, eps: float, output: InputFormat | None = None) -> None:
        self.weight = weight.float()
        self.eps = eps
        self.output = output
        self._norm = RMSNorm(self.weight, eps, wide=True)

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """x [N, H, D] float32 and gate [N, H · D], whose rows may be a part of wider ones -> [N, H · D] in the gate's dtype."""
        if x.device.type != "cpu":
            from spinf_core.nn.kernels.gated_norm import gated_norm

            return write(gated_norm(x, gate, self.weight, self.eps), self.output)
        gated = self._norm(x).flatten(1) * silu(gate.float())
        return write(gated.to(gate.dtype), self.output)
