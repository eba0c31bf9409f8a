"""What the plugin registers."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from spinf_core.plugins import Plugins, discover


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    module = EntryPoint("gemma4", "spinf_gemma4.plugin", "spinf").load()
    return discover(only=(), extra=[("gemma4", module)], strict=True, environ={})


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"])
def test_every_model_type_of_the_family_has_its_stack(plugins: Plugins, model_type: str) -> None:
    assert plugins.stack_for(model_type) is plugins.stack_of_family("gemma4")


@pytest.mark.parametrize(
    ("id_", "aliases"),
    [
        ("spinf/gemma-4-12b-fp8", ("spinf-12b", "gemma-4-12b", "google/gemma-4-12B", "google/gemma-4-12b")),
        ("spinf/gemma-4-31b-fp8", ("spinf-31b", "gemma-4-31b", "google/gemma-4-31B", "google/gemma-4-31b")),
    ],
)
def test_each_model_goes_by_its_names(plugins: Plugins, id_: str, aliases: tuple[str, ...]) -> None:
    assert {plugins.model(name).record.id for name in aliases} == {id_}


def test_no_model_promises_media_which_the_stack_does_not_read(plugins: Plugins) -> None:
    assert [(model.media, model.capabilities) for model in plugins.manifests] == [((), ("score",))] * 2
