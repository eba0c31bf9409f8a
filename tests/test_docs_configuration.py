"""docs/configuration.md lists every setting and variable, and its example is a valid file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from spinf_core.options import TABLES, options
from spinf_core.settings import OTHER_VARIABLES, load_settings

PATH = Path(__file__).parent.parent / "docs/configuration.md"
PAGE = PATH.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", PATH.parent / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_settings_classes(generate):
    assert generate.render(PAGE) == PAGE, "run `make docs`"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_there(name):
    section = PAGE.split(f"<!-- settings: {name} -->\n")[1].split("<!-- end -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [option.name for option in options(name)]


def test_every_variable_that_is_no_setting_is_listed():
    of_the_client = {"SPINF_API_KEY", "SPINF_API_URL"}
    listed = set(re.findall(r"^\| `(SPINF_\w+)` \|", PAGE, re.MULTILINE))
    assert listed == set(OTHER_VARIABLES) - of_the_client


def test_the_example_file_sets_what_it_says(tmp_path):
    file = tmp_path / "spinf.toml"
    file.write_text(re.search(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1])
    settings = load_settings(environ={}, file=file)
    assert (settings.engine.quant, settings.engine.threads, settings.limits.max_options) == ("bf16", 4, 100)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path):
    file = tmp_path / "spinf.toml"
    file.write_text('[engine]\nquant = "a"\nlm_head = "bf16"\ndevice = "a"\n')
    environ = {"SPINF_QUANT": "b", "SPINF_LM_HEAD": "fp32", "SPINF_DEVICE": ""}
    engine = load_settings({"engine.quant": "c"}, environ, file).engine
    assert (engine.quant, engine.lm_head, engine.device) == ("c", "fp32", "a")
