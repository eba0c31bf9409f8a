"""Linears with fp8 weights and activations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spinf_core.nn.linear import InputFormat, Linear
from spinf_quant_fp8s.products import FP8, LARGEST, scaled_product, to_fp8


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
        self.modules = [(w, torch.tensor(s, device=device)) for w, s in zip(weights, weight_scales, strict=True)]
        self.bias = bias
        self.in_features = weights[0].shape[1]
        self.out_features = sum(len(weight) for weight in weights)

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] fp8, already divided by the input's scale -> [M, out] bfloat16."""
        products = [scaled_product(x, weight, self.input_scale, scale) for weight, scale in self.modules]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return product if self.bias is None else product + self.bias

    def parts(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """See `Linear.parts`: products of their own, which nothing has to join first."""
        if self.bias is not None or [len(weight) for weight, _ in self.modules] != list(sizes):
            return super().parts(x, sizes)
        return tuple(scaled_product(x, weight, self.input_scale, scale) for weight, scale in self.modules)


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
