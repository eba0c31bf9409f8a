"""What this distribution brings to spinf."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spinf_core import ModelStack, hookimpl


@hookimpl
def spinf_model_stacks() -> Iterable[ModelStack]:
    """The Gemma 4 family."""
    yield ModelStack(
        name="gemma4",
        summary="Gemma 4: unified, with per-layer embeddings, and mixture of experts",
        family="gemma4",
        model_types=("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
        factory="spinf_gemma4.stack:load",
        devices=("cuda", "cpu"),
    )


@hookimpl
def spinf_manifests() -> Iterable[Path]:
    """The models that this distribution serves."""
    yield from sorted((Path(__file__).parent / "manifests").glob("*.toml"))
