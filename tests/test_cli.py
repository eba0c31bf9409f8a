"""`spinf` as its users meet it. The engine and the checkpoint cache are stood in for; their own tests are elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import ModuleType

import pytest

from spinf_core.cli import main as cli
from spinf_core.cli.main import main


@pytest.fixture(autouse=True)
def _no_settings(no_settings_from_outside):
    """Before any other fixture."""


@pytest.fixture
def broken(distribution):
    """Two plugins that cannot be imported."""
    sources = {"gadget": "raise ImportError('no gadget')", "leaver": "raise SystemExit('bye')"}
    for name, source in sources.items():
        distribution(f"spinf-{name}", "0.3", {name: f"{name}_plugin"}, {f"{name}_plugin": source})


# Finding commands


def test_the_version_is_shown(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("spinf ")


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ("score", "models", "plugins"))


def test_no_command_is_a_usage_error(capsys):
    assert main([]) == 2
    assert "usage: spinf" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["scores"]) == 2
    assert capsys.readouterr().err == "spinf: no command 'scores' is installed; the nearest is 'score'\n"


def test_an_unknown_flag_is_a_usage_error():
    with pytest.raises(SystemExit) as left:
        main(["--verbose"])
    assert left.value.code == 2


def test_cores_commands_parse_without_looking_for_plugins(monkeypatch):
    monkeypatch.setattr(cli, "_compose", lambda disabled: pytest.fail("scanned"))

    with pytest.raises(SystemExit) as left:
        main(["score", "--help"])
    assert left.value.code == 0


def test_a_command_of_a_plugin_scans_once(distribution, monkeypatch, capsys):
    source = """
        import sys
        from spinf_core import Command, hookimpl

        @hookimpl
        def spinf_commands():
            yield Command(name="count", summary="", factory="count_plugin:COMMAND")

        class COMMAND:
            configure = staticmethod(lambda parser: parser.add_argument("--by", type=int))
            run = staticmethod(lambda arguments: arguments.by + len(arguments.compose().stacks) * 0)
    """
    distribution("spinf-count", "1", {"count": "count_plugin"}, {"count_plugin": source})
    scans = []
    compose = cli._compose
    monkeypatch.setattr(cli, "_compose", lambda disabled: scans.append(1) or compose(disabled))

    assert main(["count", "--by", "7"]) == 7
    assert scans == [1]


@pytest.mark.parametrize("words", [["--no-plugin", "gadget", "plugins"], ["plugins", "--json", "--no-plugin=gadget"]])
@pytest.mark.usefixtures("broken")
def test_a_plugin_is_left_out_wherever_the_flag_stands(words, capsys):
    main(words)

    shown = capsys.readouterr().out
    assert "gadget" in shown
    assert "no gadget" not in shown
    assert "bye" in shown


def test_help_is_quick_and_imports_nothing_heavy():
    started = time.perf_counter()
    code = "import sys; from spinf_core.cli.main import main; main(['--help']); sys.stderr.write(' '.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    elapsed = time.perf_counter() - started

    assert not {"torch", "transformers", "numpy", "tokenizers"} & set(shown.stderr.split())
    assert elapsed < 2.0  # a loaded machine; on an idle one it takes about a tenth of a second


# plugins


def test_a_reader_that_has_gone_is_no_error():
    command = [sys.executable, "-m", "spinf_core.cli.main", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()

    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b""


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("command", ["--help", "plugins"])
def test_broken_plugins_are_named_with_distribution_and_cause(command, capsys):
    assert main([command]) == 0

    shown = capsys.readouterr().out
    for expected in ("spinf-gadget 0.3", "ImportError: no gadget", "spinf-leaver 0.3", "SystemExit: bye"):
        assert expected in shown


@pytest.mark.usefixtures("broken")
def test_strict_mode_stops_instead(monkeypatch, capsys):
    monkeypatch.setenv("SPINF_STRICT_PLUGINS", "1")

    assert main(["plugins"]) == 2
    assert "no gadget" in capsys.readouterr().err


@pytest.mark.usefixtures("broken")
def test_the_listing_of_plugins_for_programs(capsys):
    assert main(["plugins", "--json"]) == 0

    listing = json.loads(capsys.readouterr().out)
    assert set(listing) == {"plugins", "failures", "disabled"}
    core = listing["plugins"][0]
    assert (core["name"], core["distribution"]) == ("core", "spinf-core")
    assert {"kind": "command", "name": "score", "summary": "Score a request read from a file."} in core["registers"]
    assert listing["failures"][0] == {
        "plugin": "gadget",
        "distribution": "spinf-gadget",
        "version": "0.3",
        "cause": "ImportError: no gadget",
        "how_to_disable": "--no-plugin gadget, or SPINF_DISABLED_PLUGINS=gadget",
    }


# models


@pytest.fixture
def models(monkeypatch, tmp_path):
    (tmp_path / "small.toml").write_text(
        'id = "smollm2-135m"\naliases = ["smollm2"]\nfamily = "absent"\n[source]\nrepo = "o/n"\nrevision = "' + "a" * 40 + '"'
    )
    monkeypatch.setenv("SPINF_MANIFEST_DIRS", str(tmp_path))
    monkeypatch.setenv("SPINF_PLUGINS", "core")
    checkpoints = ModuleType("spinf_core.checkpoints")
    checkpoints.is_cached = lambda manifest: True
    monkeypatch.setitem(sys.modules, "spinf_core.checkpoints", checkpoints)
    monkeypatch.setattr("spinf_core.cli.models.gpu_present", lambda: False)


@pytest.mark.usefixtures("models")
def test_the_listing_of_models_for_programs(capsys, tmp_path):
    assert main(["models", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "models": [
            {
                "id": "smollm2-135m",
                "name": "smollm2-135m",
                "aliases": ["smollm2"],
                "family": "absent",
                "status": "available",
                "stack_installed": False,
                "source": "o/n@aaaaaaaaaaaa",
                "cached": True,
                "distribution": str(tmp_path / "small.toml"),
                "version": "",
            }
        ],
        "default": {"id": "smollm2-135m", "reason": "the embedded default: no GPU was found"},
    }


@pytest.mark.usefixtures("models")
def test_models_say_which_is_default_and_what_is_not_installed(capsys):
    assert main(["models"]) == 0

    shown = capsys.readouterr().out
    assert "its stack is not installed" in shown
    assert "default: smollm2-135m, the embedded default: no GPU was found" in shown


@pytest.mark.usefixtures("models")
def test_models_without_any_default_say_what_to_install(capsys, monkeypatch):
    monkeypatch.delenv("SPINF_MANIFEST_DIRS")

    assert main(["models"]) == 0
    assert "pip install spinf-smollm2" in capsys.readouterr().out
