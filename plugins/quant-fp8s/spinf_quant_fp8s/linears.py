"""Linears with fp8 weights and activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, Linear
from spinf_quant_fp8s.products import FP8, LARGEST, scaled_product, to_fp8

JOINED_ROWS, JOINED_OUTPUTS = 512, 8192
"""Up to this many rows, merged modules of up to this many outputs each are one product: the tiles of one alone do not fill an
H200, on which a pass of 486 rows through 12 layers of Gemma 4 12B takes 4.9 ms instead of 5.1 to 5.3."""


class StaticLinear(Linear):
    """Activations by one static scale: what is before the linear writes fp8 itself.

    Args:
        weights: [out, in] fp8 of each of the merged modules, which share their input's scale.
        weight_scales: of each.
        input_scale: of all.
        bias: [sum of out] or None.
    """

    def __init__(
        self, weights: Sequence[Tensor], weight_scales: Sequence[float], input_scale: float, bias: Tensor | None
    ) -> None:
        device = weights[0].device
        self.input_format: InputFormat | None = InputFormat(FP8, input_scale)
        self.input_scale = torch.tensor(input_scale, device=device)
        self.sizes = [len(weight) for weight in weights]
        self.bias = bias
        self.in_features, self.out_features = weights[0].shape[1], sum(self.sizes)
        scales = [torch.tensor(scale, device=device) for scale in weight_scales]
        self._joined: _Joined | None = None
        few = len(weights) > 1 and max(self.sizes) <= JOINED_OUTPUTS
        if few and joins_exactly(device, tuple(self.sizes), self.in_features, math.frexp(input_scale)[0]):
            self._joined = _Joined.of(weights, scales, self.input_scale.expand(JOINED_ROWS, 1).contiguous())
            weights = torch.split(self._joined.weight, self.sizes)
        self.modules = list(zip(weights, scales, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] fp8, already divided by the input's scale -> [M, out] bfloat16."""
        if self._joined and len(x) <= JOINED_ROWS:
            product = self._joined(x)
        else:
            products = self._products(x)
            product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return product if self.bias is None else product + self.bias

    def parts(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """See `Linear.parts`: where the modules are products of their own, nothing has to join them first."""
        joined = self._joined and len(x) <= JOINED_ROWS
        if joined or self.bias is not None or self.sizes != list(sizes):
            return super().parts(x, sizes)
        return self._products(x)

    def _products(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(scaled_product(x, weight, self.input_scale, scale) for weight, scale in self.modules)


@attrs.frozen(eq=False)
class _Joined:
    """Several modules as one product.

    Attributes:
        weight: [N, in] fp8, theirs one behind another.
        row_scales: [M, 1] of as many rows as there may be. column_scales: [1, N].
    """

    weight: Tensor
    row_scales: Tensor
    column_scales: Tensor

    @classmethod
    def of(cls, weights: Sequence[Tensor], scales: Sequence[Tensor], row_scales: Tensor) -> _Joined:
        """Of modules' weights and their scales ()."""
        weight = torch.cat([each.view(torch.uint8) for each in weights]).view(FP8)  # torch joins no fp8
        columns = [scale.expand(len(each)) for each, scale in zip(weights, scales, strict=True)]
        return cls(weight, row_scales, torch.cat(columns).view(1, -1))

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] fp8 -> [M, N] bfloat16."""
        return scaled_product(x, self.weight, self.row_scales[: len(x)], self.column_scales)


@functools.cache
def joins_exactly(device: torch.device, sizes: tuple[int, ...], width: int, input_scale: float) -> bool:
    """Whether one product by row and column scales gives here every bit of a product for each module: otherwise a row's bits
    would depend on how many rows there are. Tried on random numbers, once for modules of the same sizes and scale.

    Args:
        device: a GPU; others, whose products are emulated, gain nothing and do not join.
        sizes: outputs of each module. width: of their input.
        input_scale: theirs, but for a power of two: such a factor rounds nothing, in whichever order the scales are multiplied.
    """
    return device.type == "cuda" and gives_the_same(device, sizes, width, input_scale)


def gives_the_same(device: torch.device, sizes: Sequence[int], width: int, input_scale: float) -> bool:
    """Whether one product gives a product for each module, to the bit. See `joins_exactly`."""
    generator = torch.Generator(device).manual_seed(0)

    def random(rows: int) -> Tensor:
        return to_fp8(torch.randn(rows, width, generator=generator, device=device), 2.0**-4)

    weights = [random(size) for size in sizes]
    scales = [torch.tensor(1e-3 / (3 + number), device=device) for number in range(len(sizes))]
    row_scale = torch.tensor(input_scale, device=device)
    joined = _Joined.of(weights, scales, row_scale.expand(JOINED_ROWS, 1).contiguous())
    for rows in range(16, JOINED_ROWS + 1, 16):
        x = random(rows)
        apart = [scaled_product(x, weight, row_scale, scale) for weight, scale in zip(weights, scales, strict=True)]
        try:
            if not torch.equal(joined(x), torch.cat(apart, dim=1)):
                return False
        except (RuntimeError, ValueError):  # this device has no products by row and column scales
            return False
    return True


class SplitLinear(Linear):
    """Static linears whose inputs have different scales, side by side; each quantizes the input for itself."""

    def __init__(self, modules: Sequence[StaticLinear]) -> None:
        self.modules = modules
        self.in_features = modules[0].in_features
        self.out_features = sum(module.out_features for module in modules)

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] bfloat16 -> [M, out] bfloat16."""
        return torch.cat([module(to_fp8(x, module.input_scale)) for module in self.modules], dim=1)


class RowLinear(Linear):
    """Activations scaled by each token's largest value, weights by each channel's.

    Args:
        weight: [out, in] in float. bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = row_scales(weight)
        self.weight = to_fp8(weight, scale)
        self.weight_scale = scale.view(1, -1)
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out] bfloat16."""
        scale = row_scales(x)
        product = scaled_product(to_fp8(x, scale), self.weight, scale, self.weight_scale)
        return product if self.bias is None else product + self.bias


class DynamicLinear(Linear):
    """Activations and weights scaled by their largest value; the activations' over the whole pass, so rows depend on others.

    Args:
        weight: [out, in] in float. bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight_scale = row_scales(weight.reshape(1, -1)).view(())
        self.weight = to_fp8(weight, self.weight_scale)
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out] bfloat16."""
        scale = row_scales(x.reshape(1, -1)).view(())
        product = scaled_product(to_fp8(x, scale), self.weight, scale, self.weight_scale)
        return product if self.bias is None else product + self.bias


def row_scales(x: Tensor) -> Tensor:
    """max |x| / 448 over each row [M, 1], float32; 1 where that is zero."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    return torch.where(scale > 0, scale, torch.ones_like(scale))
