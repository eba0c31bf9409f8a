"""Runs what a request could otherwise be the first to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from spinf_core.engine.loading import Loaded
from spinf_core.engine.probes import random_probe, read_rows, run_probes


def warm_up(loaded: Loaded, how: Literal["full", "short", "none"], progress: Callable[[str], None]) -> None:
    """Run passes before the first request.

    Args:
        loaded: the model.
        how: `short` runs a small pass and one of the token budget; `full` one of every power of two between on a device that
            loads its kernels when they are first used, and the same as `short` on a CPU; `none` nothing.
        progress: called with a line for each stage.
    """
    if how == "none":
        return
    sizes = [size for size in loaded.sizes.listed if size <= loaded.budget]
    between = [] if how == "short" or loaded.model.device.type == "cpu" else sizes[1:-1]
    sizes = [sizes[0], *(size for size in between if size.bit_count() == 1), sizes[-1]]
    generator = np.random.default_rng(0)
    for size in sizes:
        progress(f"warming up: a pass of {size} rows")
        content = size // 2
        probe = random_probe(generator, loaded.model.vocab_size, content, 1, 4)
        while (job := probe.job()).rows < size - 24:
            more = random_probe(generator, loaded.model.vocab_size, 0, max(1, (size - job.rows) // 24), 20)
            probe = type(probe)(probe.content, (*probe.branches, *more.branches))
        with torch.inference_mode():
            (hidden,) = run_probes(loaded.model, [probe], loaded.sizes)
            read_rows(loaded.model, hidden)
