"""What the plugin registers, and what becomes of its schemes where they cannot run."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from spinf_quant_fp8s import plugin
from spinf_quant_fp8s.products import FP8
from spinf_quant_fp8s.scheme import Dynamic, Row, Static, build_static
from spinf_quant_fp8s.settings import Fp8Settings
from spinf_quant_fp8s.table import ScaleTable

from spinf_core.checkpoints import Checkpoint
from spinf_core.engine.engine import Engine
from spinf_core.engine.fingerprint import inputs
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

    with pytest.raises(SetupError, match=rf"scheme {name} of .* needs cuda and fp8, .*--quant (bf16|fp32)"):
        choose_scheme(settings, None, plugins, CPU, {}, Checkpoint(tmp_path, "r", "here"))


def test_an_engine_on_a_cpu_stops_with_that_message(plugins: Plugins, tmp_path: Path) -> None:
    folder = toy_plugin.write_toy_checkpoint(tmp_path / "toy")
    settings = load_settings({"engine.quant": "fp8s", "engine.device": "cpu"}, environ={}, plugins=plugins)

    with pytest.raises(SetupError, match=r"scheme fp8s of .*--quant (bf16|fp32)"):
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


def test_a_table_of_another_checkpoint_stops_the_load_where_a_scale_of_it_is_needed(tmp_path: Path, checkpoint) -> None:
    path = tmp_path / "scales.json"
    path.write_text('{"revision": "theirs", "scales": {"a": 0.125}}')
    context = SchemeContext(name="fp8s", device=CPU, settings=Fp8Settings(scales=str(path)), revision="ours")
    own = {"a.weight": torch.ones(16, 32).to(FP8), "a.weight_scale": torch.ones(1), "a.input_scale": torch.ones(1)}

    build_static(context).linear(checkpoint(own), ("a",), (16,), 32)
    with pytest.raises(SetupError, match=r"scales\.json was made for revision theirs, and this checkpoint is revision ours"):
        build_static(context).linear(checkpoint({"a.weight": torch.randn(16, 32)}), ("a",), (16,), 32)


def test_scales_of_a_table_move_the_fingerprint(tmp_path: Path) -> None:
    engine = toy_plugin.toy_engine(tmp_path / "toy")
    model = engine.service.loaded.model

    def found(scheme: Static) -> str:
        return inputs("r", model, scheme, "f32out", (16,), {})["scheme"]

    tables = [ScaleTable(revision="r", provenance={}, scales={"a": scale}) for scale in (0.5, 0.25)]
    assert len({found(Static(None)), *(found(Static(table)) for table in tables)}) == 3
    engine.close()


def test_the_commands_are_those_of_the_plugin(plugins: Plugins) -> None:
    for name in ("calibrate", "quantize"):
        module = load_factory(plugins.command(name))
        parser = argparse.ArgumentParser()
        module.configure(parser)
        assert "--out" in parser.format_help()


def test_help_of_the_commands_imports_no_torch() -> None:
    code = (
        "import sys, argparse\n"
        "from spinf_quant_fp8s import calibrate, quantize, plugin\n"
        "for module in (calibrate, quantize): module.configure(argparse.ArgumentParser())\n"
        "sys.exit(str([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_a_scale_table_that_is_not_there_stops_the_start(plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"nowhere\.json"):
        factory_of_fp8s(plugins, {"SPINF_FP8S_SCALES": str(tmp_path / "nowhere.json")})
