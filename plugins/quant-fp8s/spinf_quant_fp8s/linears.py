"""Linears with fp8 weights and activations."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, Linear
from spinf_quant_fp8s.products import FP8, LARGEST, scaled_product, to_fp8

JOINED_ROWS = 512
"""Up to this many rows, merged modules are one product: an H200 is not full of a single one's tiles."""


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
        self.weight = weights[0] if len(weights) == 1 else torch.cat([each.view(torch.uint8) for each in weights]).view(FP8)
        scales = [torch.tensor(scale, device=device) for scale in weight_scales]
        self.modules = list(zip(torch.split(self.weight, self.sizes), scales, strict=True))
        self.bias = bias
        self.out_features, self.in_features = self.weight.shape
        self._joined = len(weights) > 1 and joins_exactly(device, tuple(self.sizes), self.in_features)
        if self._joined:
            self._row_scales = self.input_scale.expand(JOINED_ROWS, 1).contiguous()
            self._column_scales = column_scales(scales, self.sizes)

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] fp8, already divided by the input's scale -> [M, out] bfloat16."""
        if self._joins(x):
            product = scaled_product(x, self.weight, self._row_scales[: len(x)], self._column_scales)
        else:
            products = self._products(x)
            product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return product if self.bias is None else product + self.bias

    def parts(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """See `Linear.parts`: where the modules are products of their own, nothing has to join them first."""
        if self._joins(x) or self.bias is not None or self.sizes != list(sizes):
            return super().parts(x, sizes)
        return self._products(x)

    def _joins(self, x: Tensor) -> bool:
        return self._joined and len(x) <= JOINED_ROWS

    def _products(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(scaled_product(x, weight, self.input_scale, scale) for weight, scale in self.modules)


def column_scales(scales: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """[1, N] the scale of each output, from those of the modules () and how many outputs each has."""
    return torch.cat([scale.expand(size) for scale, size in zip(scales, sizes, strict=True)]).view(1, -1)


@functools.cache
def joins_exactly(device: torch.device, sizes: tuple[int, ...], width: int) -> bool:
    """Whether one product by row and column scales gives here every bit of a product for each module: otherwise a row's bits
    would depend on how many rows there are. Tried on random numbers, once for modules of the same sizes.

    Args:
        device: a GPU; others, whose products are emulated, gain nothing and do not join.
        sizes: outputs of each module. width: of their input.
    """
    if device.type != "cuda":
        return False
    generator = torch.Generator(device).manual_seed(0)

    def random(rows: int) -> Tensor:
        return to_fp8(torch.randn(rows, width, generator=generator, device=device), 2.0**-4)

    weights = [random(size) for size in sizes]
    scales = [torch.tensor(1e-3 / (3 + number), device=device) for number in range(len(sizes))]
    row_scale = torch.tensor(2.0**-4, device=device)
    for rows in (16, JOINED_ROWS):
        x = random(rows)
        apart = [scaled_product(x, weight, row_scale, scale) for weight, scale in zip(weights, scales, strict=True)]
        try:
            joined = scaled_product(
                x,
                torch.cat([weight.view(torch.uint8) for weight in weights]).view(FP8),
                row_scale.expand(rows, 1).contiguous(),
                column_scales(scales, sizes),
            )
        except RuntimeError:  # this device has no products by row and column scales
            return False
        if not torch.equal(joined, torch.cat(apart, dim=1)):
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
