"""What this distribution brings to spinf."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spinf_core import ModelStack, hookimpl


@hookimpl
def spinf_model_stacks() -> Iterable[ModelStack]:
    """The Llama family."""
    yield ModelStack(
        name="llama",
        summary="Llama-architecture models, SmolLM2 among them",
        family="llama",
        model_types=("llama",),
        factory="spinf_smollm2.stack:load",
        convert="spinf_smollm2.gguf:convert",
    )


@hookimpl
def spinf_manifests() -> Iterable[Path]:
    """The models that this distribution serves."""
    yield from sorted((Path(__file__).parent / "manifests").glob("*.toml"))
