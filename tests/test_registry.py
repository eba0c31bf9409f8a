"""What look-ups in a composition find, and what they say of what is missing."""

from __future__ import annotations

import pytest

from spinf_core import Command, SetupError
from spinf_core.plugins import Plugins, Registered, composition_table, discover, load_factory
from spinf_core.registry import FIRST_PARTY


def found(only: tuple[str, ...] | None = None, **options) -> Plugins:
    return discover(only=only, environ={}, **options)


def test_what_is_missing_quotes_the_plugins_that_failed(distribution):
    distribution("spinf-smollm2", "0.1", {"smollm2": "bad_plugin"}, {"bad_plugin": "raise ImportError('no gguf')"})

    with pytest.raises(SetupError, match=r"pip install spinf-smollm2.*spinf-smollm2 0\.1: ImportError: no gguf"):
        found(only=("smollm2",)).stack_for("llama")


@pytest.mark.parametrize(
    ("look_up", "name", "help"),
    [
        ("stack_for", "qwen3_5_text", "pip install spinf-qwen35"),
        ("stack_of_family", "gemma4", "pip install spinf-gemma4"),
        ("scheme", "fp8row", "pip install spinf-quant-fp8s"),
        ("pack_source", "github", "pip install spinf-packs-github"),
        ("model", "spinf/pplx-decider-v1-27b-int4", "is installed; it is of the family 'pplx', which no installed plugin runs"),
        ("model", "google/gemma-4-12B", "pip install spinf-gemma4"),
        ("command", "plugin", "the nearest is 'plugins'"),
        ("command", "calibrate", "pip install spinf-quant-fp8s"),
        ("frontend", "grpc", "no front end 'grpc' is installed"),
    ],
)
def test_what_is_missing_says_what_would_bring_it(look_up, name, help):
    with pytest.raises(SetupError) as error:
        getattr(found(only=()), look_up)(name)
    assert help in str(error.value)


def test_no_distribution_is_recommended_that_does_not_exist():
    for kind, name in (("stack_of_family", "pplx"), ("stack_for", "pplx"), ("model", "spinf/pplx-decider-v1-27b-int4")):
        with pytest.raises(SetupError) as error:
            getattr(found(only=()), kind)(name)
        assert "pip install" not in str(error.value)


def test_what_is_missing_names_the_plugins_left_out(distribution):
    distribution("spinf-first", "1.0", {"first": "first_plugin"}, {"first_plugin": "raise ImportError"})

    with pytest.raises(SetupError, match=r"Left out: .*first"):
        found(disabled=["first"]).stack_for("first_text")


def test_distributions_that_are_recommended_follow_the_naming_of_this_project():
    assert all(name.startswith("spinf-") for name in FIRST_PARTY.values())


def test_a_factory_is_imported_when_it_is_asked_for():
    command = Registered(Command(name="x", summary="", factory="json:decoder.JSONDecoder"), "x", "spinf-x", "1.0")

    assert load_factory(command)().decode("[1]") == [1]


@pytest.mark.parametrize(
    ("factory", "cause"),
    [
        ("no_such_module_here:x", "ModuleNotFoundError"),
        ("json:nothing", "ModuleNotFoundError"),
        ("math:nothing", "AttributeError"),
    ],
)
def test_a_factory_that_cannot_be_imported_names_record_distribution_and_cause(factory, cause):
    command = Registered(Command(name="x", summary="", factory=factory), "x", "spinf-x", "1.0")

    with pytest.raises(SetupError, match=rf"Command 'x' of spinf-x 1\.0.*{cause}"):
        load_factory(command)


def test_the_composition_table_lines_up():
    table = composition_table([("model", "smollm2-135m", "spinf-smollm2 0.1.0"), ("head", "lm_head", "")])

    assert table == "model  smollm2-135m  spinf-smollm2 0.1.0\nhead   lm_head"
