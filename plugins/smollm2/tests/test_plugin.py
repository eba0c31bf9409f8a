from __future__ import annotations

from importlib.metadata import EntryPoint

from spinf_core.plugins import Plugins, discover


def composed() -> Plugins:
    module = EntryPoint("smollm2", "spinf_smollm2.plugin", "spinf").load()
    return discover(only=(), extra=[("smollm2", module)], strict=True, environ={})


def test_the_llama_family_has_its_stack():
    plugins = composed()

    assert plugins.stack_for("llama") is plugins.stack_of_family("llama")


def test_every_model_it_serves_has_its_stack():
    plugins = composed()

    assert [plugins.stack_of_family(model.family) for model in plugins.manifests]


def test_the_embedded_default_goes_by_both_names():
    plugins = composed()

    assert plugins.model("smollm2-135m") is plugins.model("SmolLM2")
