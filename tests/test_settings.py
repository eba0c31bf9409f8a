"""Layered settings: precedence, origins, strictness, and what is made from their classes."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import attrs
import pytest

from spinf_core import Command, Manifest, SetupError
from spinf_core.cli.flags import add_flags, given_flags
from spinf_core.manifests import ModelLimits, QuantChoice, Source
from spinf_core.options import TABLES, options
from spinf_core.plugins import Plugins, Registered
from spinf_core.settings import load_settings, settings_file

MANIFEST = Manifest(
    id="m",
    family="f",
    source=Source(repo="o/n", revision="0" * 40),
    quant=QuantChoice(default="fp32"),
    limits=ModelLimits(token_budget=2048, request={"max_options": 7}),
)


@attrs.frozen
class Colours:
    shade: str = "blue"
    depth: int | None = None


def with_record(name: str = "my-report", settings: type | None = Colours) -> Plugins:
    record = Command(name=name, summary="", factory="json:loads", settings=settings)
    return Plugins(commands=(Registered(record, "mine", "spinf-mine", "1"),))


def toml(folder: Path, text: str) -> Path:
    path = folder / "spinf.toml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(**layers) -> str:
    with pytest.raises(SetupError) as error:
        load_settings(**{"environ": {}, **layers})
    return str(error.value)


# Layers


def test_defaults_are_those_of_the_contract():
    limits = load_settings(environ={}).limits

    assert attrs.asdict(limits) == {
        "max_content_tokens": 4096,
        "max_query_tokens": 256,
        "max_prompts_per_input": 10000,
        "max_extractions_per_input": 10,
        "max_processed_tokens": 2_000_000,
        "max_options": 1000,
        "max_option_tokens": 5,
        "max_frames": 1024,
        "max_audio_seconds": 600,
        "max_image_pixels": 50_000_000,
    }


def test_each_layer_gives_way_to_the_one_above(tmp_path):
    layers = {
        "manifest": MANIFEST,
        "file": toml(tmp_path, '[engine]\nquant = "file"'),
        "environ": {"SPINF_QUANT": "variable"},
        "flags": {"engine.quant": "flag"},
    }

    def quant(*names: str) -> tuple[str | None, str]:
        settings = load_settings(**{"environ": {}} | {name: layers[name] for name in names})
        return settings.engine.quant, settings.origin("engine.quant")

    file = tmp_path / "spinf.toml"
    assert quant() == (None, "default")
    assert quant("manifest") == ("fp32", "manifest m")
    assert quant("manifest", "file") == ("file", f"{file}: [engine] quant")
    assert quant("manifest", "file", "environ") == ("variable", "SPINF_QUANT")
    assert quant("manifest", "file", "environ", "flags") == ("flag", "--quant")


def test_a_file_of_any_name_lies_above_the_manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("default.toml").write_text('[engine]\nquant = "file"')

    assert load_settings(file=Path("default.toml"), environ={}, manifest=MANIFEST).engine.quant == "file"


def test_a_manifest_found_later_still_lies_below_everything_but_defaults():
    settings = load_settings(environ={"SPINF_TOKEN_BUDGET": "4096"}).with_manifest(MANIFEST)

    assert settings.engine.token_budget == 4096
    assert settings.limits.max_options == 7
    assert settings.engine.quant == "fp32"


def test_the_settings_file_is_the_flags_or_the_variables():
    assert settings_file("a.toml", {"SPINF_CONFIG": "b.toml"}) == Path("a.toml")
    assert settings_file(None, {"SPINF_CONFIG": "b.toml"}) == Path("b.toml")
    assert settings_file(None, {}) is None


# Names


@pytest.mark.parametrize(
    ("variable", "value", "key", "expected"),
    [
        ("SPINF_MEDIA", "0", "engine.media", False),
        ("SPINF_MEDIA", "image,audio", "features.media_kinds", ("image", "audio")),
        ("SPINF_ENGINE_TOKEN", "secret", "server.trusted_token", "secret"),
        ("SPINF_COMPILE", "off", "engine.compile", False),
        ("SPINF_PACKS", "a, github:b/c", "features.packs", ("a", "github:b/c")),
        ("SPINF_STACK_OPTIONS", "a=1, b=x=y", "engine.stack_options", {"a": "1", "b": "x=y"}),
        ("SPINF_MODEL_DIR", "/models", "engine.model_dir", Path("/models")),
        ("SPINF_QUEUE", "9", "server.queue", 9),
        ("SPINF_QUEUE", " ", "server.queue", 64),
        ("SPINF_MAX_OPTIONS", "9", "limits.max_options", 9),
        ("SPINF_OFFICIAL_PACKS", "0", "features.official_packs", False),
    ],
)
def test_environment_names(variable, value, key, expected):
    table, name = key.split(".")

    assert getattr(getattr(load_settings(environ={variable: value}), table), name) == expected


FLAGS = """--device --quant --model-dir --token-budget --max-tokens --lm-head --no-media --no-compile --warmup
    --stack-options --host --port --token --trusted-token --queue --max-body-bytes --debug --media --extraction
    --no-extraction --generation --no-generation --packs --no-official-packs --packs-allow-namespace --packs-refresh
    --max-content-tokens --max-query-tokens --max-prompts-per-input --max-extractions-per-input --max-processed-tokens
    --max-options --max-option-tokens --max-frames --max-audio-seconds --max-image-pixels"""


def test_the_flags_are_those_of_the_contract():
    flags = {flag for option in options() for flag in option.flags}

    beyond = "--threads --self-test --floor-cache-bytes --frontends --log-format --no-share-passes --drain-seconds"
    assert flags - set(beyond.split()) == set(FLAGS.split())


def test_flags_and_variables_follow_the_names_of_settings_but_for_a_few():
    odd = {
        option.key
        for option in options()
        if option.env
        != "SPINF_" + re.sub(r"\W", "_", next(iter(option.flags), "--?").removeprefix("--")).upper().replace("NO_", "", 1)
    }

    assert odd == {"engine.model", "server.trusted_token", "features.official_source"}


def test_no_two_settings_share_a_flag():
    flags = [flag for option in options() for flag in option.flags]

    assert len(flags) == len(set(flags))


# Flags


def parsed(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser, TABLES)
    return given_flags(parser.parse_args(words))


def test_flags_that_are_not_given_leave_no_trace():
    assert parsed() == {}


def test_flags_reach_the_settings():
    switches = parsed("--no-media", "--extraction", "--no-generation")
    values = parsed("--queue", "3", "--packs", "a", "b", "--packs", "c", "--media", "image,video")
    settings = load_settings(switches | values, environ={})

    assert (settings.engine.media, settings.features.extraction, settings.features.generation) == (False, True, False)
    assert settings.server.queue == 3
    assert settings.features.packs == ("a", "b", "c")
    assert settings.features.media_kinds == ("image", "video")


def test_values_of_other_types_are_taken_as_they_are():
    assert load_settings({"engine.threads": 2}, environ={}).engine.threads == 2
    assert "--threads True: expected a whole number" in fault(flags={"engine.threads": True})


def test_every_setting_has_help():
    assert all(option.help for option in options())


# Faults


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SPINF_QUEUE": "ten"}, "SPINF_QUEUE='ten': expected a whole number"),
        ({"SPINF_QUEUE": "0"}, "SPINF_QUEUE='0': expected at least 1"),
        ({"SPINF_PORT": "70000"}, "SPINF_PORT='70000': expected at most 65535"),
        ({"SPINF_COMPILE": "maybe"}, "SPINF_COMPILE='maybe': expected 1 or 0 (also true, false, yes, no, on, off)"),
        ({"SPINF_WARMUP": "long"}, "SPINF_WARMUP='long': expected one of full, short, none"),
        ({"SPINF_MEDIA": "sound"}, "SPINF_MEDIA='sound': expected one of image, audio, video"),
        ({"SPINF_STACK_OPTIONS": "a"}, "SPINF_STACK_OPTIONS='a': expected name=value,…"),
    ],
)
def test_a_wrong_variable_is_named_with_what_was_expected(environ, expected):
    assert fault(environ=environ) == expected


def test_a_wrong_flag_is_named_with_what_was_expected():
    assert fault(flags={"server.queue": "ten"}) == "--queue 'ten': expected a whole number"


def test_an_unknown_setting_is_named_with_the_nearest():
    assert fault(flags={"server.que": "1"}) == ("there is no setting 'server.que'; the nearest known name is 'server.queue'")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nqueu = 1", "[server] has no key 'queu'; the nearest known name is 'queue'"),
        ("[sever]\nqueue = 1", "unknown table 'sever'; the nearest known name is 'server'"),
        ("queue = 1", "unknown key 'queue'"),
        ("server = 1", "server: expected a table, got 1"),
        ('[server]\nqueue = "5"', "[server] queue = '5': expected a whole number"),
        ("[server]\nqueue = true", "[server] queue = True: expected a whole number"),
        ("[engine]\nmedia = 1", "[engine] media = 1: expected true or false"),
        ('[features]\npacks = "a"', "[features] packs = 'a': expected a list of texts"),
        ("[limits]\nmax_options = 0", "[limits] max_options = 0: expected at least 1"),
        ("plugin = 1", "plugin: expected tables, [plugin.NAME]"),
        ("[server", ""),
    ],
)
def test_a_wrong_file_is_named_with_table_key_and_what_was_expected(tmp_path, text, expected):
    message = fault(file=toml(tmp_path, text))

    assert str(tmp_path / "spinf.toml") in message
    assert expected in message


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "nowhere.toml" in fault(file=tmp_path / "nowhere.toml")


def test_secrets_are_never_shown(tmp_path):
    settings = load_settings(environ={"SPINF_TOKEN": "hush-hush"})
    message = fault(file=toml(tmp_path, "[server]\ntoken = 271828"))

    assert "hush-hush" not in repr(settings)
    assert "271828" not in message


# Settings of plugins


def test_a_records_settings_are_read_from_its_table_and_its_variables(tmp_path):
    plugins = with_record()
    file = toml(tmp_path, '[plugin.my-report]\nshade = "red"\ndepth = 1')

    settings = load_settings(file=file, environ={"SPINF_MY_REPORT_DEPTH": "2"}, plugins=plugins)

    assert settings.of_record(plugins.commands[0].record) == Colours(shade="red", depth=2)


def test_a_record_without_settings_gets_none():
    plugins = with_record(settings=None)

    assert load_settings(environ={}, plugins=plugins).of_record(plugins.commands[0].record) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[plugin.my-report]\nshad = "red"', "[plugin.my-report] shad: unknown key; the nearest known name is 'shade'"),
        ("[plugin.my-report]\nshade = 1", "[plugin.my-report] shade: expected a text, got 1"),
        ("[plugin.my-repot]\n", "[plugin.my-repot]: nothing installed takes these settings; the nearest known name"),
    ],
)
def test_a_wrong_table_of_a_plugin_is_refused_naming_the_nearest(tmp_path, text, expected):
    assert expected in fault(file=toml(tmp_path, text), plugins=with_record())


def test_a_setting_that_a_plugin_requires_and_nobody_gives_is_named():
    @attrs.frozen
    class Required:
        place: str

    plugins = with_record(settings=Required)

    with pytest.raises(SetupError, match=r"^\[plugin\.my-report\] place: is missing"):
        load_settings(environ={}, plugins=plugins).of_record(plugins.commands[0].record)


def test_a_wrong_variable_of_a_plugin_is_named():
    expected = "SPINF_MY_REPORT_DEPTH='deep': expected a whole number"
    plugins = with_record()
    settings = load_settings(environ={"SPINF_MY_REPORT_DEPTH": "deep"}, plugins=plugins)

    with pytest.raises(SetupError, match=expected):
        settings.of_record(plugins.commands[0].record)


def test_a_variable_that_nothing_reads_is_a_warning_with_the_nearest_name():
    environ = {"SPINF_QEUE": "1", "SPINF_MY_REPORT_SHADE": "red", "SPINF_QUEUE": "2", "OTHER": ""}

    warnings = load_settings(environ=environ, plugins=with_record()).warnings

    assert warnings == ("SPINF_QEUE is set, and nothing reads it; the nearest known name is 'SPINF_QUEUE'",)
