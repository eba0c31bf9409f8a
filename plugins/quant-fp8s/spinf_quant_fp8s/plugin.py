"""What this distribution brings to spinf."""

from __future__ import annotations

from collections.abc import Iterable

from spinf_core import Command, QuantScheme, hookimpl
from spinf_quant_fp8s.settings import Fp8Settings


@hookimpl
def spinf_quant_schemes() -> Iterable[QuantScheme]:
    """The fp8 schemes; each needs a GPU with fp8 units (compute capability 8.9 or newer)."""
    needs = ("cuda", "fp8")
    yield QuantScheme(
        name="fp8s",
        summary="fp8 weights and activations with static calibrated scales.",
        factory="spinf_quant_fp8s.scheme:build_static",
        requires=needs,
        settings=Fp8Settings,
    )
    yield QuantScheme(
        name="fp8row",
        summary="fp8 weights per channel, activations per token.",
        factory="spinf_quant_fp8s.scheme:build_row",
        requires=needs,
    )
    yield QuantScheme(
        name="fp8",
        summary="fp8 weights and activations per tensor, scaled anew in every pass; scores vary with the packing.",
        factory="spinf_quant_fp8s.scheme:build_dynamic",
        requires=needs,
        invariant=False,
    )


@hookimpl
def spinf_commands() -> Iterable[Command]:
    """From a plain checkpoint to an fp8-static one."""
    yield Command(
        name="calibrate",
        summary="Find the static fp8 scales of a model's activations from requests.",
        factory="spinf_quant_fp8s:calibrate",
    )
    yield Command(
        name="quantize",
        summary="Write an fp8-static checkpoint from a plain one and its scales.",
        factory="spinf_quant_fp8s:quantize",
    )
