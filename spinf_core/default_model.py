"""Which model runs when none is named."""

from __future__ import annotations

import shutil
from pathlib import Path

from spinf_core.registry import Plugins

GPU_DEFAULT = "spinf/gemma-4-12b-fp8"
EMBEDDED_DEFAULT = "smollm2-135m"


def gpu_present() -> bool:
    """Whether this machine seems to have an NVIDIA GPU, told without importing torch."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None


def chosen_model(named: str | None, plugins: Plugins) -> tuple[str, str]:
    """The model that runs, and why it is that one: the one that was named, else the default.

    Raises:
        SetupError: none was named, and no default is installed.
    """
    return (named, "asked for") if named is not None else default_model(plugins, gpu_present())


def default_model(plugins: Plugins, gpu: bool) -> tuple[str, str]:
    """The id of the default model, and why it is that one.

    Raises:
        SetupError: where no default is installed, naming what would bring it.
    """
    large = plugins.manifests.find(GPU_DEFAULT)
    if gpu and large is not None and large.available:
        return large.id, "a GPU was found and its plugin is installed"
    embedded = plugins.model(EMBEDDED_DEFAULT).record
    if not gpu:
        return embedded.id, "the embedded default: no GPU was found"
    return embedded.id, f"the embedded default: a GPU was found, but no plugin that serves {GPU_DEFAULT}"
