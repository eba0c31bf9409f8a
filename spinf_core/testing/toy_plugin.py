"""A plugin around the toy stack, with a checkpoint to write: an engine that loads in a second, by the whole path.

    with toy_engine(tmp_path / "toy") as engine:  # plugins, settings, checkpoint, self-test
        engine.score({"messages": […], "scoring": {"queries": […]}})

Nothing is fetched, and no installed plugin is loaded. The self-test's result and the checkpoint's hash go to spinf's cache
(`SPINF_CACHE`), as those of any model do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from spinf_core.engine.engine import Engine
from spinf_core.errors import SetupError
from spinf_core.hookspecs import hookimpl
from spinf_core.plugins import Plugins, discover
from spinf_core.records import ModelStack
from spinf_core.settings import load_settings
from spinf_core.stack import LoadContext
from spinf_core.testing.toy import HIDDEN, SHAPES, ToyModel, toy_backend, toy_tokenizer, toy_vocab_size, toy_weights
from spinf_core.weights import Weights

MODEL_TYPE = "spinf_toy"


@hookimpl
def spinf_model_stacks() -> Iterable[ModelStack]:
    """The toy stack."""
    yield ModelStack(
        name="toy",
        summary="A toy model for tests",
        family="toy",
        model_types=(MODEL_TYPE,),
        factory="spinf_core.testing.toy_plugin:load",
    )


def load(context: LoadContext) -> ToyModel:
    """The stack's factory. The toy runs in float32 alone."""
    if context.scheme.name != "fp32":
        raise SetupError(f"the toy stack runs with fp32, not with {context.scheme.name}")
    config = context.config
    bos = config["bos"]
    vocab_size = toy_vocab_size(toy_tokenizer(bos))
    shapes = {**SHAPES, "embedding": (vocab_size, HIDDEN), "lm_head": (vocab_size, HIDDEN)}
    weights = Weights(context.folder, context.device)
    tensors = {name: weights.take(name, shape, context.scheme.dtype) for name, shape in shapes.items()}
    weights.finish()
    return ToyModel(window=config["window"], bos=bos, weights=tensors)


def write_toy_checkpoint(folder: Path, *, seed: int = 0, window: int | None = None, bos: bool = False) -> Path:
    """Write a checkpoint folder of random weights.

    Args:
        folder: made where it is missing.
        seed: of the weights.
        window: of the attention layer, in rows of depth; None: all.
        bos: whether the tokenizer adds BOS.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, "window": window, "bos": bos}))
    toy_backend().save(str(folder / "tokenizer.json"))
    save_file(toy_weights(toy_vocab_size(toy_tokenizer(bos)), seed), folder / "model.safetensors")
    return folder


def toy_plugins() -> Plugins:
    """Core and the toy plugin, whatever is installed."""
    return discover(only=(), extra=[("toy", sys.modules[__name__])], strict=True, environ={})


def toy_engine(
    folder: Path,
    *,
    seed: int = 0,
    window: int | None = None,
    bos: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Engine:
    """An engine of a toy checkpoint.

    Args:
        folder: where the checkpoint is written, unless there is one already.
        seed, window, bos: see `write_toy_checkpoint`.
        settings: by `table.name`, such as `{"engine.token_budget": 64}`; they win over small budgets of the toy's own. The
            environment and its settings file are not read.
        progress: called with a line for each stage of loading.
    """
    if not (folder / "config.json").is_file():
        write_toy_checkpoint(folder, seed=seed, window=window, bos=bos)
    flags = {"engine.token_budget": 256, "engine.max_tokens": 512, "engine.device": "cpu", "engine.quant": "fp32"}
    flags |= settings or {}
    plugins = toy_plugins()
    return Engine(str(folder), settings=load_settings(flags, environ={}, plugins=plugins), plugins=plugins, progress=progress)
