"""The schemes: which linear a module gets, from an fp8 checkpoint's own tensors or from plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from spinf_core.errors import SetupError
from spinf_core.nn.linear import Linear
from spinf_core.quant.interface import SchemeContext
from spinf_core.quant.reading import StaticFp8, take_bias, take_merged, take_static_fp8, take_weight
from spinf_core.weights import Weights
from spinf_quant_fp8s.linears import DynamicLinear, RowLinear, SplitLinear, StaticLinear
from spinf_quant_fp8s.products import quantize_weight
from spinf_quant_fp8s.settings import Fp8Settings
from spinf_quant_fp8s.table import ScaleTable

Names = tuple[str, ...]
Sizes = tuple[int, ...]


class Static:
    """`fp8s`: from an fp8-static checkpoint as it is, or from a plain one with a scale table.

    Args:
        table: of input scales.
        revision: of the checkpoint, which the table must be of; empty where it is not known.
    """

    name = "fp8s"
    dtype = torch.bfloat16
    invariant = True
    numerics = 2

    def __init__(self, table: ScaleTable | None, revision: str = "") -> None:
        self._table = table
        self._revision = revision
        self.source = f"scales {table.digest}" if table else ""

    def linear(self, weights: Weights, names: Names, out_features: Sizes, in_features: int) -> Linear:
        """See `Scheme.linear`."""
        shapes = [(rows, in_features) for rows in out_features]
        parts = [self._part(weights, name, shape) for name, shape in zip(names, shapes, strict=True)]
        bias = take_bias(weights, names, out_features, self.dtype)
        if len({part.input_scale for part in parts}) == 1:
            stored = [part.weight for part in parts]
            return StaticLinear(stored, [part.weight_scale for part in parts], parts[0].input_scale, bias)
        biases: Sequence[torch.Tensor | None] = [None] * len(parts) if bias is None else torch.split(bias, list(out_features))
        return SplitLinear(
            [
                StaticLinear([part.weight], [part.weight_scale], part.input_scale, own)
                for part, own in zip(parts, biases, strict=True)
            ]
        )

    def _part(self, weights: Weights, name: str, shape: tuple[int, int]) -> StaticFp8:
        if weights.has(f"{name}.weight_scale"):
            return take_static_fp8(weights, name, shape)
        plain = take_weight(weights, name, shape, torch.float32)
        if self._table is None:
            raise SetupError(
                f"{name} has no scales: the checkpoint is not fp8-static; name a scale table in SPINF_FP8S_SCALES, which "
                "`spinf calibrate` makes, or choose --quant fp8row or bf16"
            )
        self._table.check_revision(self._revision)
        weight, scale = quantize_weight(plain)
        return StaticFp8(weight, scale.item(), self._table.input_scale(name))


class Row:
    """`fp8row`: quantized at load, per channel and per token."""

    name = "fp8row"
    dtype = torch.bfloat16
    invariant = True
    numerics = 1

    def linear(self, weights: Weights, names: Names, out_features: Sizes, in_features: int) -> Linear:
        """See `Scheme.linear`."""
        weight, bias = take_merged(weights, names, out_features, in_features, torch.float32)
        return RowLinear(weight, None if bias is None else bias.to(self.dtype))


class Dynamic:
    """`fp8`: quantized at load, per tensor."""

    name = "fp8"
    dtype = torch.bfloat16
    invariant = False
    numerics = 1

    def linear(self, weights: Weights, names: Names, out_features: Sizes, in_features: int) -> Linear:
        """See `Scheme.linear`."""
        weight, bias = take_merged(weights, names, out_features, in_features, torch.float32)
        return DynamicLinear(weight, None if bias is None else bias.to(self.dtype))


def build_static(context: SchemeContext) -> Static:
    """The factory of `fp8s`."""
    settings = context.settings
    assert settings is None or isinstance(settings, Fp8Settings)
    path = settings.scales if settings else ""
    return Static(ScaleTable.read(Path(path).expanduser()) if path else None, context.revision)


def build_row(context: SchemeContext) -> Row:
    """The factory of `fp8row`."""
    return Row()


def build_dynamic(context: SchemeContext) -> Dynamic:
    """The factory of `fp8`."""
    return Dynamic()
