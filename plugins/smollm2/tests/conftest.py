from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from spinf_smollm2 import plugin

from spinf_core.checkpoints import Checkpoint, resolve
from spinf_core.engine.engine import Engine
from spinf_core.plugins import Plugins, discover, load_factory
from spinf_core.settings import load_settings

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    """Core with this plugin alone, whatever else is installed."""
    return discover(only=(), extra=[("smollm2", plugin)], strict=True, environ={})


@pytest.fixture(scope="session")
def weights(plugins: Plugins) -> Checkpoint:
    """The default model, fetched and converted on the first run."""
    manifest = plugins.model(MODEL).record
    stack = plugins.stack_of_family(manifest.family)
    return resolve(manifest, convert=load_factory(stack, stack.record.convert))


@pytest.fixture(scope="session")
def engine_of(plugins: Plugins, weights: Checkpoint) -> Callable[[str], Engine]:
    """Loads the default model with a scheme."""

    def load(quant: str) -> Engine:
        return Engine(
            MODEL, settings=load_settings({"engine.quant": quant}, plugins=plugins, environ=os.environ), plugins=plugins
        )

    return load
