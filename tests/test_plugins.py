"""What discovery makes of good, broken and contradictory plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spinf_core import Command, Manifest, ModelStack, PackSource, SetupError, hookimpl
from spinf_core.hookspecs import SpinfSpecs
from spinf_core.manifests import Source
from spinf_core.plugins import HOOKS, Plugins, discover

STACK = """
    from spinf_core import ModelStack, hookimpl

    @hookimpl
    def spinf_model_stacks():
        yield ModelStack(name="{name}", summary="", family="{name}", model_types=("{name}_text",), factory="json:loads")
"""


def found(only: tuple[str, ...] | None = None, **options) -> Plugins:
    return discover(only=only, environ={}, **options)


def causes(plugins: Plugins) -> dict[str, str]:
    return {failure.plugin: failure.cause for failure in plugins.failures}


def application(**records) -> tuple[str, object]:
    """A plugin that an application passes itself, from its records by hook."""

    def hook(values):
        return hookimpl(lambda: values)

    return "mine", SimpleNamespace(**{name: hook(values) for name, values in records.items()})


# Loading


def test_a_plugin_registers_its_records_with_their_provenance(distribution):
    distribution("spinf-good", "1.2", {"good": "good_plugin"}, {"good_plugin": STACK.format(name="good")})

    stack = found().stack_for("good_text")

    assert (stack.record.family, stack.plugin, stack.distribution, stack.version) == (
        "good",
        "good",
        "spinf-good",
        "1.2",
    )


def test_core_registers_through_the_same_hooks():
    command = found(only=()).command("score")

    assert (command.plugin, command.distribution) == ("core", "spinf-core")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise ImportError('no module gadget')", "ImportError: no module gadget"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError: "),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_recorded_and_stops_nothing(distribution, source, cause):
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})
    distribution("spinf-good", "1.2", {"good": "good_plugin"}, {"good_plugin": STACK.format(name="good")})

    plugins = found()

    (failure,) = plugins.failures
    assert (failure.plugin, failure.distribution, failure.version) == ("bad", "spinf-bad", "0.1")
    assert failure.cause.startswith(cause)
    assert "--no-plugin bad" in failure.how_to_disable
    assert plugins.stack_for("good_text")


def test_an_interrupt_while_loading_is_not_swallowed(distribution):
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": "raise KeyboardInterrupt"})

    with pytest.raises(KeyboardInterrupt):
        found()


def test_an_entry_point_that_names_nothing_is_recorded(distribution):
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin:missing"}, {"bad_plugin": ""})

    assert "missing" in causes(found())["bad"]


def test_a_plugin_without_hooks_is_told_how_to_mark_them(distribution):
    source = "def spinf_model_stacks(): return []"
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})

    assert "hookimpl" in causes(found())["bad"]


def test_a_misspelled_hook_is_its_plugins_error_and_names_the_nearest(distribution):
    source = STACK.format(name="bad").replace("spinf_model_stacks", "spinf_model_stack")
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})
    distribution("spinf-good", "1.2", {"good": "good_plugin"}, {"good_plugin": STACK.format(name="good")})

    plugins = found()

    expected = "unknown hook 'spinf_model_stack'; the nearest known name is 'spinf_model_stacks'"
    assert causes(plugins) == {"bad": expected}
    assert plugins.stack_for("good_text")


def test_a_hook_with_arguments_is_its_plugins_error(distribution):
    source = STACK.format(name="bad").replace("spinf_model_stacks()", "spinf_model_stacks(device)")
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})

    assert "device" in causes(found())["bad"]


# Draining


def test_a_generator_that_fails_half_way_costs_only_its_own_hook(distribution):
    source = (
        STACK.format(name="bad")
        + """
        raise RuntimeError("half way")

    @hookimpl
    def spinf_manifests():
        return []
    """
    )
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})
    distribution("spinf-good", "1.2", {"good": "good_plugin"}, {"good_plugin": STACK.format(name="good")})

    plugins = found()

    assert causes(plugins) == {"bad": "spinf_model_stacks: RuntimeError: half way"}
    assert [item.record.family for item in plugins.stacks if item.plugin in ("bad", "good")] == ["good"]


@pytest.mark.parametrize("result", ["None", "5", "['llama']", "[Command(name='x', summary='', factory='json:loads')]"])
def test_a_hook_that_gives_something_else_than_its_records_is_recorded(distribution, result):
    source = f"""
        from spinf_core import Command, hookimpl

        @hookimpl
        def spinf_model_stacks():
            return {result}
    """
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})

    plugins = found()

    assert causes(plugins)["bad"].startswith("spinf_model_stacks: ")
    assert not [item for item in plugins.stacks if item.plugin == "bad"]


def test_a_record_of_another_interface_version_is_refused_naming_both(distribution):
    source = STACK.format(name="bad").replace("summary=", "api=99, summary=")
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": source})

    cause = causes(found())["bad"]

    assert "version 99" in cause
    assert "version 1" in cause


def test_settings_that_are_no_attrs_class_are_refused():
    record = Command(name="x", summary="", factory="json:loads", settings=dict)

    assert "attrs" in causes(found(only=(), extra=[application(spinf_commands=[record])]))["mine"]


# Claims


def test_two_distributions_that_claim_one_name_are_both_refused_naming_both(distribution):
    for letter in "ab":
        source = STACK.format(name="same")
        distribution(f"spinf-{letter}", "1.0", {letter: f"{letter}_plugin"}, {f"{letter}_plugin": source})

    plugins = found()

    assert [failure.plugin for failure in plugins.failures[:1]] == ["a"]
    assert {failure.plugin for failure in plugins.failures} == {"a", "b"}
    assert all("spinf-a 1.0" in failure.cause and "spinf-b 1.0" in failure.cause for failure in plugins.failures)
    with pytest.raises(SetupError, match=r"spinf-a 1\.0.*spinf-b 1\.0"):
        plugins.stack_of_family("same")


def test_a_model_type_is_one_stacks_alone():
    stacks = [ModelStack(name=name, summary="", family=name, model_types=("shared",), factory="json:loads") for name in "ab"]

    plugins = found(only=(), extra=[application(spinf_model_stacks=stacks)])

    assert plugins.stacks == ()
    assert "model_type 'shared'" in causes(plugins)["mine"]


def test_a_stack_that_names_a_model_type_twice_does_not_contradict_itself():
    stack = ModelStack(name="a", summary="", family="a", model_types=("a", "a"), factory="json:loads")

    assert found(only=(), extra=[application(spinf_model_stacks=[stack])]).stack_for("a").record is stack


def test_a_pack_scheme_is_one_sources_alone():
    sources = [PackSource(name=name, summary="", scheme="bucket", factory="json:loads") for name in "ab"]

    plugins = found(only=(), extra=[application(spinf_pack_sources=sources)])

    assert "pack source 'bucket:'" in causes(plugins)["mine"]


def test_cores_own_records_stay_when_a_plugin_claims_their_name():
    mine = Command(name="score", summary="", factory="json:loads")

    plugins = found(only=(), extra=[application(spinf_commands=[mine])])

    assert plugins.command("score").plugin == "core"
    assert "spinf-core" in causes(plugins)["mine"]


def test_models_that_share_an_alias_in_another_case_are_refused_naming_both():
    models = [
        Manifest(id=name, family="f", aliases=(alias,), status="coming_soon")
        for name, alias in (("one", "Shared"), ("two", "shARED"))
    ]

    plugins = found(only=(), extra=[application(spinf_manifests=models)])

    assert len(plugins.manifests) == 0
    with pytest.raises(SetupError, match="model 'shared' is claimed by"):
        plugins.model("SHARED")


def test_plugins_of_one_name_from_two_distributions_are_neither_loaded(distribution):
    for letter in "ab":
        modules = {f"{letter}_plugin": STACK.format(name=letter)}
        distribution(f"spinf-{letter}", "1.0", {"same": f"{letter}_plugin"}, modules)

    plugins = found()

    assert [failure.distribution for failure in plugins.failures] == ["spinf-a", "spinf-b"]
    assert "spinf-b 1.0" in plugins.failures[0].cause
    assert found(disabled=["spinf-b"]).stack_for("a_text")


def test_one_distribution_found_twice_counts_once(distribution):
    for _ in range(2):
        distribution("spinf-good", "1.2", {"good": "good_plugin"}, {"good_plugin": STACK.format(name="good")})

    plugins = found()

    assert plugins.failures == ()
    assert [plugin.name for plugin in plugins.loaded].count("good") == 1


# Choosing


@pytest.fixture
def two_good(distribution):
    for name in ("first", "second"):
        modules = {f"{name}_plugin": STACK.format(name=name)}
        distribution(f"spinf-{name}", "1.0", {name: f"{name}_plugin"}, modules)


@pytest.mark.usefixtures("two_good")
@pytest.mark.parametrize("name", ["first", "spinf-first", "Spinf_First"])
def test_a_plugin_is_left_out_by_its_name_or_its_distributions(name):
    plugins = found(disabled=[name])

    assert "first" in plugins.disabled
    assert plugins.stack_for("second_text")
    with pytest.raises(SetupError):
        plugins.stack_for("first_text")


@pytest.mark.usefixtures("two_good")
def test_the_environment_chooses_too():
    assert [p.name for p in discover(environ={"SPINF_PLUGINS": "second"}).loaded] == ["core", "second"]
    left = discover(environ={"SPINF_PLUGINS": "first,second", "SPINF_DISABLED_PLUGINS": "second"})
    assert [p.name for p in left.loaded] == ["core", "first"]


@pytest.mark.usefixtures("two_good")
def test_a_plugin_asked_for_that_is_not_installed_is_recorded_with_the_nearest():
    assert "'second'" in causes(found(only=("secnd",)))["secnd"]


def test_a_plugin_left_out_is_never_imported(distribution):
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": "raise ImportError"})

    assert found(disabled=["bad"]).failures == ()


@pytest.mark.parametrize("strict", [{"strict": True}, {"environ": {"SPINF_STRICT_PLUGINS": "1"}}])
def test_strict_mode_raises_with_the_cause(distribution, strict):
    distribution("spinf-bad", "0.1", {"bad": "bad_plugin"}, {"bad_plugin": "raise ImportError('gadget')"})

    with pytest.raises(SetupError, match=r"'bad' of spinf-bad 0\.1: ImportError: gadget"):
        discover(**{"environ": {}, **strict})


def test_compositions_do_not_share_state():
    mine = Command(name="mine", summary="", factory="json:loads")

    found(only=(), extra=[application(spinf_commands=[mine])])

    with pytest.raises(SetupError):
        found(only=()).command("mine")


# Manifests of plugins and of folders


def test_folders_of_manifests_are_read_and_their_faults_recorded(tmp_path: Path):
    (tmp_path / "a.toml").write_text('id = "a"\nfamily = "f"\nstatus = "coming_soon"\n')
    (tmp_path / "b.toml").write_text('id = "b"\nfamly = "f"\n')

    plugins = discover(only=(), environ={"SPINF_MANIFEST_DIRS": str(tmp_path)})

    assert plugins.model("A").distribution == str(tmp_path / "a.toml")
    (failure,) = plugins.failures
    assert "b.toml: famly" in failure.cause
    assert failure.how_to_disable == f"take {tmp_path} out of SPINF_MANIFEST_DIRS"


def test_a_model_of_an_application_is_found_by_alias_in_any_case():
    source = Source(repo="o/n", revision="0" * 40)
    model = Manifest(id="o/n", family="f", aliases=("Short",), source=source)

    plugins = found(only=(), extra=[application(spinf_manifests=[model])])

    assert plugins.model("sHORT").record is model
    assert plugins.manifests.nearest("shirt") == "Short"


def test_every_hook_is_composed():
    hooks = {name for name in vars(SpinfSpecs) if name.startswith("spinf_")}

    assert set(HOOKS) == hooks


@pytest.mark.parametrize("module", ["spinf_core.cli.main", "spinf_core.plugins", "spinf_core.cli.score"])
def test_heavy_libraries_stay_unimported(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'numpy', 'triton'}} & set(sys.modules)))"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
