"""What this distribution brings to spinf."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spinf_core import ModelStack, hookimpl


@hookimpl
def spinf_model_stacks() -> Iterable[ModelStack]:
    """The Qwen3.5 family; the mixtures of experts are named so that their refusal says why."""
    yield ModelStack(
        name="qwen3_5",
        summary="Qwen3.5: gated delta layers and attention, text only",
        family="qwen3_5",
        model_types=("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        factory="spinf_qwen35.stack:load",
        devices=("cuda", "cpu"),
    )


@hookimpl
def spinf_manifests() -> Iterable[Path]:
    """The models that this distribution announces."""
    yield from sorted((Path(__file__).parent / "manifests").glob("*.toml"))
