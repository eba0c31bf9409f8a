"""Has a model's kernels compiled side by side before the first pass: one after another they take seconds where none is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from spinf_core.engine.probes import random_probe, read_rows, run_probes
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.graphs import unrecorded
from spinf_core.stack import Model

_log = logging.getLogger(__name__)
ROWS = 16


def compile_ahead(model: Model, sizes: Sizes, progress: Callable[[str], None] = lambda line: None) -> None:
    """Run what the self-test and requests run once, with every kernel compiled and not launched.

    The rest of the work runs on whatever the memory holds, and its results are dropped. What fails here is logged and left to
    the first pass that needs it. Nothing is done on a CPU, where there are no kernels.
    """
    if model.device.type != "cuda":
        return
    from spinf_core.nn.kernels.launch import compiling_ahead

    progress("compiling kernels")
    try:
        with unrecorded(), compiling_ahead():
            _run(model, sizes)
    except Exception as error:
        _log.warning("kernels are compiled when they are launched, since to do so ahead failed: %s", error)


def _run(model: Model, sizes: Sizes) -> None:
    # The layers first: attention takes longest to compile.
    probe = random_probe(np.random.default_rng(0), model.vocab_size, content=8, branches=2, longest=4)
    (hidden,) = run_probes(model, [probe], sizes)
    read_rows(model, hidden)
    for operation in model.operations():
        operation.call(torch.zeros(ROWS, operation.width, dtype=operation.dtype, device=model.device))
