"""bfloat16 linears on the CPU, their weights kept in the layout that the processor's products read.

`F.linear` brings a weight into that layout in every call, which for a few rows takes longer than the product. oneDNN's products
also apply an activation, a factor or a summand to their float32 sums before these are rounded, which saves passes over memory.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from spinf_core.nn.activation import gated
from spinf_core.nn.linear import InputFormat, Linear, PlainLinear

Activation = Literal["silu", "gelu_tanh"]

USUAL_ROWS = 1024  # the layout is chosen for about this many
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names what multiplies bfloat16 natively: of x86-64, then of Arm. Others would convert every number to float32."""

_CPUINFO = Path("/proc/cpuinfo")
_FUSED = {"silu": ("swish", ""), "gelu_tanh": ("gelu", "tanh")}


@functools.cache
def packs() -> bool:
    """Whether this machine's oneDNN has bfloat16 products."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_bf16() -> bool:
    """Whether the processor multiplies bfloat16 natively and torch makes use of it."""
    return packs() and bool(BF16_FLAGS & _flags())


def _flags() -> frozenset[str]:
    """Of all processors alike; what torch says where it says something, else what Linux says; empty where neither does."""
    if (told := getattr(torch.cpu, "get_capabilities", None)) is not None:
        return frozenset(str(name) for name, present in told().items() if present is True)
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        word
        for line in lines
        if line.partition(":")[0].strip() in ("flags", "Features")
        for word in line.partition(":")[2].split()
    )


def pack(linear: Linear) -> Linear:
    """The same linear, packed where it is an unquantized one in bfloat16 on a CPU that has such products."""
    if not _packable(linear):
        return linear
    return PackedLinear(linear.weight, linear.bias)


class PackedLinear(Linear):
    """A linear whose weight oneDNN has packed.

    Args:
        weight: [out, in] bfloat16. bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), USUAL_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]."""
        return self._product(x, "none", "")

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """See `Linear.added`; rounded once."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, to, self._weight, self.bias, "add")
        return found

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """(x Wᵀ + b) · factor, [M, out], rounded once."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, factor, self._weight, self.bias, "mul")
        return found

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """activation(x Wᵀ + b), rounded once."""
        return self._product(x, *_FUSED[activation])

    def _product(self, x: Tensor, name: str, algorithm: str) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, name, [], algorithm)
        return found


class GatedLinear:
    """activation(x Gᵀ) · (x Uᵀ), the first half of a gated feed-forward layer (Shazeer 2020, «GLU variants», section 2).

    Args:
        gate_up: G over U, [2 · size, in].
        size: of either.
        activation: of the gate.
        output: the format that the linear behind wants.
    """

    def __init__(self, gate_up: Linear, size: int, activation: Activation, output: InputFormat | None) -> None:
        self.input_format = gate_up.input_format
        self.sizes = (size, size)
        self.activation = activation
        self.output = output
        self._halves = self._whole = None
        if output is None and _packable(gate_up):
            weights = torch.split(gate_up.weight, size)
            biases = (None, None) if gate_up.bias is None else torch.split(gate_up.bias, size)
            self._halves = tuple(map(PackedLinear, weights, biases))
        else:
            self._whole = gate_up

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, size]."""
        if self._halves is not None:
            gate, up = self._halves
            return up.times(x, gate.activated(x, self.activation))
        assert self._whole is not None
        gate_rows, up_rows = self._whole.parts(x, self.sizes)
        return gated(gate_rows, up_rows, self.activation, self.output)


def _packable(linear: Linear) -> TypeGuard[PlainLinear]:
    if type(linear) is not PlainLinear:
        return False
    return linear.weight.device.type == "cpu" and linear.weight.dtype == torch.bfloat16 and packs()
