"""Which quantization scheme runs: the one asked for, or what suits the checkpoint and the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from spinf_core.checkpoints import Checkpoint
from spinf_core.engine.fingerprint import device_name
from spinf_core.errors import SetupError
from spinf_core.manifests import Manifest
from spinf_core.nn.packed import native_bf16
from spinf_core.quant.interface import Scheme, SchemeContext
from spinf_core.quant.reading import has_static_fp8
from spinf_core.records import QuantScheme
from spinf_core.registry import Plugins, Registered, load_factory
from spinf_core.settings import Settings

ROOM = 6 * 2**30
"""Memory that passes need beside the weights."""


@attrs.frozen
class Choice:
    """A scheme's name, and why it is that one; for the start-up table."""

    name: str
    why: str


def choose_scheme(
    settings: Settings,
    manifest: Manifest | None,
    plugins: Plugins,
    device: torch.device,
    config: Mapping[str, Any],
    checkpoint: Checkpoint,
) -> tuple[Registered[QuantScheme], Scheme]:
    """The scheme asked for, else the manifest's, else by the device and the checkpoint (see `automatic`).

    Raises:
        SetupError: the checkpoint's quantization is not known; or the scheme is not allowed for the model, not installed, or
            not for this device, naming what would run.
    """
    static_fp8 = has_static_fp8(config)
    name = settings.engine.quant or automatic(device, static_fp8, checkpoint.folder).name
    allowed = manifest.quant.allowed if manifest else ()
    if allowed and name not in allowed:
        assert manifest is not None
        origin = settings.origin("engine.quant")
        raise SetupError(f"model {manifest.id} runs with {', '.join(allowed)}, not with {name!r} ({origin})")
    registered = plugins.scheme(name)
    lacking = [need for need in registered.record.requires if need not in offers(device)]
    if lacking:
        raise SetupError(
            f"scheme {name} of {registered.origin} needs {' and '.join(lacking)}, which {device_name(device)} lacks; this "
            f"checkpoint would run with --quant {automatic(device, static_fp8, checkpoint.folder).name}"
        )
    context = SchemeContext(
        name=name, device=device, settings=settings.of_record(registered.record), revision=checkpoint.revision
    )
    scheme: Scheme = load_factory(registered)(context)
    return registered, scheme


def automatic(device: torch.device, static_fp8: bool, folder: Path) -> Choice:
    """bf16 on a CPU that multiplies it natively, else fp32; on a GPU fp8s where it has fp8 units and the checkpoint has scales,
    else bf16 where that fits with room for passes, else w8a16."""
    if device.type != "cuda":
        if native_bf16():
            return Choice("bf16", "this processor multiplies bfloat16 natively; fp32 is slower and exact")
        return Choice("fp32", "this processor has no bfloat16 products")
    if static_fp8 and "fp8" in offers(device):
        return Choice("fp8s", "the checkpoint has fp8 scales, and the GPU fp8 units")
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    needed = stored * (2 if static_fp8 else 1)
    total = torch.cuda.get_device_properties(device).total_memory
    return Choice("bf16", "it fits the GPU") if needed + ROOM <= total else Choice("w8a16", "bf16 does not fit the GPU")


def offers(device: torch.device) -> set[str]:
    """What a scheme's `requires` may name on this device; fp8 units came with compute capability 8.9."""
    if device.type != "cuda":
        return {device.type}
    return {"cuda", "fp8"} if torch.cuda.get_device_capability(device) >= (8, 9) else {"cuda"}
