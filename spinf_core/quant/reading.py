"""Reading a checkpoint's weights, quantized or not.

Known layouts: plain tensors, and `compressed-tensors` `float-quantized` with static scales per tensor (fp8: `weight` in
float8_e4m3fn, `weight_scale`, `input_scale`; the layout that vLLM's llm-compressor writes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from spinf_core.errors import SetupError
from spinf_core.weights import Weights

INT4_METHODS = frozenset({"gptq", "awq", "auto-round"})


def has_static_fp8(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's weights and activations are fp8 with static scales.

    Raises:
        SetupError: it is quantized in a layout that is not known, which is named.
    """
    quantization = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not quantization:
        return False
    method, format_ = quantization.get("quant_method"), quantization.get("format")
    groups = quantization.get("config_groups") or {}
    if (method, format_) == ("compressed-tensors", "float-quantized") and groups:
        problems = [problem for group in groups.values() for problem in _unlike_static_fp8(group)]
        if not problems:
            return True
        raise SetupError(f"the checkpoint's fp8 layout is not one that is read: {'; '.join(problems)}")
    if method in INT4_METHODS or format_ == "pack-quantized":
        layout = format_ if format_ == "pack-quantized" else method
        raise SetupError(
            f"the checkpoint is quantized, and the int4 layout {layout!r} is not run yet; use one that is not quantized, with "
            "--quant w8a16 where memory is short"
        )
    raise SetupError(
        f"the checkpoint is quantized by {method!r}, format {format_!r}, which is not a known layout; use one that is not "
        "quantized, or compressed-tensors float-quantized with static scales per tensor"
    )


def _unlike_static_fp8(group: Mapping[str, Any]) -> list[str]:
    problems = []
    for part in ("weights", "input_activations"):
        found = group.get(part) or {}
        for name, wanted in (("num_bits", 8), ("type", "float"), ("strategy", "tensor"), ("dynamic", False)):
            if found.get(name) != wanted:
                problems.append(f"{part}.{name} is {found.get(name)!r}, not {wanted!r}")
    return problems


@attrs.frozen(eq=False)
class StaticFp8:
    """A weight [out, in] in float8_e4m3fn, its scale, and the scale of its inputs."""

    weight: Tensor
    weight_scale: float
    input_scale: float


def take_weight(weights: Weights, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The weight of a module in a float dtype, whatever its layout in the checkpoint.

    Raises:
        SetupError: a tensor is missing, has another shape, or a scale is not a positive number.
    """
    if not weights.has(f"{name}.weight_scale"):
        plain = weights.take(f"{name}.weight", shape)
        if not plain.is_floating_point() or plain.dtype.itemsize == 1:
            raise SetupError(
                f"tensor {name}.weight is {plain.dtype} and there is no tensor {name}.weight_scale; the checkpoint is damaged, "
                "fetch it again, or it is quantized in a layout that is not known"
            )
        return plain.to(dtype)
    stored = take_static_fp8(weights, name, shape)
    return (stored.weight.float() * stored.weight_scale).to(dtype)


def take_merged(
    weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], in_features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The weights of several modules one under another [sum of out, in], and their biases where they have them.

    Raises:
        SetupError: as `take_weight`; also where only some of the modules have a bias.
    """
    parts = [take_weight(weights, name, (rows, in_features), dtype) for name, rows in zip(names, out_features, strict=True)]
    weight = parts[0] if len(parts) == 1 else torch.cat(parts)
    return weight.contiguous(), take_bias(weights, names, out_features, dtype)


def take_bias(weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """The biases of several modules one behind another; None where none has one.

    Raises:
        SetupError: only some have one.
    """
    if not any(weights.has(f"{name}.bias") for name in names):
        return None
    pairs = zip(names, out_features, strict=True)
    return torch.cat([weights.take(f"{name}.bias", (rows,), dtype) for name, rows in pairs])


def take_static_fp8(weights: Weights, name: str, shape: tuple[int, ...]) -> StaticFp8:
    """A module's fp8 weight and its scales.

    Raises:
        SetupError: as `take_weight`.
    """
    weight = weights.take(f"{name}.weight", shape)
    if weight.dtype != torch.float8_e4m3fn:
        raise SetupError(f"tensor {name}.weight has a scale but is {weight.dtype}, not float8_e4m3fn")
    return StaticFp8(weight, _scale(weights, f"{name}.weight_scale"), _scale(weights, f"{name}.input_scale"))


def _scale(weights: Weights, name: str) -> float:
    tensor = weights.take(name, dtype=torch.float32)
    if tensor.numel() != 1:
        raise SetupError(f"scale {name} has shape {list(tensor.shape)}; one number for the whole tensor is read")
    return checked_scale(name, tensor.item(), "the checkpoint is damaged; fetch it again")


def checked_scale(name: str, value: float, mend: str) -> float:
    """A scale that can divide, as float32 holds it.

    Args:
        name: of the scale, and mend: what to do about it, for the message.

    Raises:
        SetupError: in float32 it is zero, negative or not finite.
    """
    held = torch.tensor(value, dtype=torch.float32).item()
    if not (math.isfinite(held) and held > 0):
        raise SetupError(f"scale {name} is {value:g}, which is not a positive float32 number; {mend}")
    return held
