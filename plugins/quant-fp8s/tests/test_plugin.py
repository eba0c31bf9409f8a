"""What the plugin registers, and what becomes of its schemes where they cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from spinf_quant_fp8s import plugin
from spinf_quant_fp8s.scheme import Dynamic, Row, Static

from spinf_core.checkpoints import Checkpoint
from spinf_core.engine.engine import Engine
from spinf_core.engine.schemes import choose_scheme
from spinf_core.errors import SetupError
from spinf_core.plugins import Plugins, discover, load_factory
from spinf_core.quant.interface import SchemeContext
from spinf_core.settings import load_settings
from spinf_core.testing import toy_plugin

CPU = torch.device("cpu")
NAMES = ("fp8s", "fp8row", "fp8")


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    module = EntryPoint("quant-fp8s", "spinf_quant_fp8s.plugin", "spinf").load()
    return discover(only=(), extra=[("quant-fp8s", module), ("toy", toy_plugin)], strict=True, environ={})


@pytest.mark.parametrize(("name", "cls"), [("fp8s", Static), ("fp8row", Row), ("fp8", Dynamic)])
def test_each_record_says_of_its_scheme_what_the_scheme_says(plugins: Plugins, name: str, cls: type) -> None:
    registered = plugins.scheme(name)

    scheme = load_factory(registered)(SchemeContext(name=name, device=CPU))

    assert type(scheme) is cls
    assert (scheme.name, scheme.invariant) == (name, registered.record.invariant)


def test_these_are_all() -> None:
    assert tuple(record.name for record in plugin.spinf_quant_schemes()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_none_runs_on_a_cpu_and_the_message_names_what_would(plugins: Plugins, tmp_path: Path, name: str) -> None:
    settings = load_settings({"engine.quant": name}, environ={}, plugins=plugins)

    with pytest.raises(SetupError, match=rf"scheme {name} of .* needs cuda and fp8, .*--quant fp32"):
        choose_scheme(settings, None, plugins, CPU, {}, Checkpoint(tmp_path, "r", "here"))


def test_an_engine_on_a_cpu_stops_with_that_message(plugins: Plugins, tmp_path: Path) -> None:
    folder = toy_plugin.write_toy_checkpoint(tmp_path / "toy")
    settings = load_settings({"engine.quant": "fp8s", "engine.device": "cpu"}, environ={}, plugins=plugins)

    with pytest.raises(SetupError, match=r"scheme fp8s of .*--quant fp32"):
        Engine(str(folder), settings=settings, plugins=plugins)


def factory_of_fp8s(plugins: Plugins, environ: Mapping[str, str]) -> Static:
    registered = plugins.scheme("fp8s")
    settings = load_settings(environ=environ, plugins=plugins).of_record(registered.record)
    scheme: Static = load_factory(registered)(SchemeContext(name="fp8s", device=CPU, settings=settings))
    return scheme


def test_the_environment_names_the_scale_table(plugins: Plugins, tmp_path: Path, checkpoint) -> None:
    table = tmp_path / "scales.json"
    table.write_text('{"revision": "a", "scales": {"a": 0.125}}')

    scheme = factory_of_fp8s(plugins, {"SPINF_FP8S_SCALES": str(table)})

    linear = scheme.linear(checkpoint({"a.weight": torch.randn(16, 32)}), ("a",), (16,), 32)
    assert linear.input_format is not None
    assert linear.input_format.scale == 0.125


def test_a_scale_table_that_is_not_there_stops_the_start(plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"nowhere\.json"):
        factory_of_fp8s(plugins, {"SPINF_FP8S_SCALES": str(tmp_path / "nowhere.json")})
