"""What the plugin registers."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from spinf_core.plugins import Plugins, discover


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    module = EntryPoint("qwen35", "spinf_qwen35.plugin", "spinf").load()
    return discover(only=(), extra=[("qwen35", module)], strict=True, environ={})


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_text"])
def test_every_model_type_of_the_family_has_its_stack(plugins: Plugins, model_type: str) -> None:
    assert plugins.stack_for(model_type) is plugins.stack_of_family("qwen3_5")


def test_mixtures_of_experts_reach_the_stack_which_says_why_it_refuses_them(plugins: Plugins) -> None:
    assert plugins.stack_for("qwen3_5_moe") is plugins.stack_of_family("qwen3_5")


def test_the_int4_model_is_announced_under_its_names_and_not_served(plugins: Plugins) -> None:
    (manifest,) = {plugins.model(name).record for name in ("spinf/qwen3.8-27b-int4", "Qwen3.8-27B-S")}
    assert not manifest.available
    assert plugins.stack_of_family(manifest.family)
