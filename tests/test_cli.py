"""`spinf` as its users meet it. The engine and the checkpoint cache are stood in for; their own tests are elsewhere."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import attrs
import pytest

from spinf_core import ModelStack, Rejected, SetupError
from spinf_core.cli import main as cli
from spinf_core.cli.main import main
from spinf_core.plugins import Registered, discover

REQUEST = {"messages": [{"role": "user", "content": "Hi"}], "scoring": {"queries": []}}
RESPONSE = {
    "id": "scr_1",
    "results": [{"input_id": "0", "queries": []}],
    "warnings": [],
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"content_tokens": 1, "query_tokens": 2, "floor_tokens": 0}},
}


STACK = Registered(
    ModelStack(name="any", summary="", family="any", model_types=("any",), factory="any:load"), "any", "spinf-any", "1.0"
)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("SPINF_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def engine(monkeypatch):
    """Stands in for the engine; tells what it was given and does what `engine.score` says."""
    told = SimpleNamespace(score=lambda request: RESPONSE, request=None, model=None, settings=None, closed=False)

    class Engine:
        composition = (("model", "small", "spinf-small 1.0"),)

        def __init__(self, model=None, *, settings=None, plugins=None, progress=None, official_packs=False):
            told.model, told.settings, told.plugins, told.official_packs = model, settings, plugins, official_packs
            print("a library prints while loading")
            progress("loading small")

        def __enter__(self):
            return self

        def __exit__(self, *raised):
            told.closed = True

        def score(self, request):
            told.request = request
            return SimpleNamespace(to_dict=lambda: told.score(request))

    module = ModuleType("spinf_core.engine.engine")
    module.Engine = Engine
    monkeypatch.setitem(sys.modules, "spinf_core.engine.engine", module)
    return told


@pytest.fixture
def request_file(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST))
    return str(path)


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


# score


def test_only_the_response_reaches_standard_output(engine, request_file, capsys):
    assert main(["score", request_file]) == 0

    shown = capsys.readouterr()
    assert json.loads(shown.out) == RESPONSE
    assert engine.request == REQUEST
    assert engine.closed
    for line in ("a library prints while loading", "loading small", "model  small  spinf-small 1.0"):
        assert line in shown.err.splitlines()


def test_a_request_is_read_from_standard_input(engine, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(REQUEST).encode())))

    assert main(["score", "-"]) == 0
    assert engine.request == REQUEST


def test_model_and_flags_reach_the_engine(engine, request_file):
    assert main(["score", request_file, "small", "--threads", "2", "--max-options", "5"]) == 0

    assert engine.model == "small"
    assert (engine.settings.engine.threads, engine.settings.limits.max_options) == (2, 5)


def test_the_settings_file_reaches_the_engine(engine, request_file, tmp_path):
    (tmp_path / "spinf.toml").write_text('[engine]\nmodel = "from-file"')

    assert main(["score", request_file, "--config", str(tmp_path / "spinf.toml")]) == 0
    assert engine.model == "from-file"


def test_pretty_indents(engine, request_file, capsys):
    main(["score", request_file, "--pretty"])

    assert capsys.readouterr().out.startswith('{\n  "id"')


def test_a_table_takes_the_place_of_json(engine, request_file, capsys):
    assert main(["score", request_file, "--table"]) == 0
    assert capsys.readouterr().out.startswith("input 0\n")


@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff\xfe{}", b"[" * 200_000, b"[]", b"9" * 5000], ids=lambda content: str(content[:4])
)
def test_what_is_no_json_object_is_refused_in_the_envelope(engine, tmp_path, capsys, content):
    path = tmp_path / "request.json"
    path.write_bytes(content)

    assert main(["score", str(path)]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert json.loads(shown.err)["error"]["code"] == "invalid_json"


def test_a_number_that_json_lacks_is_refused_with_its_path(engine, tmp_path, capsys):
    path = tmp_path / "request.json"
    path.write_text('{"scoring": {"queries": [{"top_k": NaN}]}}')

    assert main(["score", str(path)]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["param"] == "scoring.queries.0.top_k"


def test_a_refused_request_is_told_in_the_envelope(engine, request_file, capsys):
    def refuse(request):
        raise Rejected("empty_queries", "There are no queries.", "scoring.queries")

    engine.score = refuse

    assert main(["score", request_file]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert json.loads(shown.err.splitlines()[-1]) == {
        "error": {
            "type": "invalid_request",
            "code": "empty_queries",
            "message": "There are no queries.",
            "param": "scoring.queries",
        },
        "request_id": None,
    }


@pytest.mark.parametrize(
    ("raised", "status", "line"), [(SetupError("no model"), 2, "spinf: no model"), (KeyboardInterrupt(), 130, None)]
)
def test_what_stops_a_run_decides_its_status(engine, request_file, capsys, raised, status, line):
    def stop(request):
        raise raised

    engine.score = stop

    assert main(["score", request_file]) == status
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert line is None or line in shown.splitlines()


def test_a_request_that_is_not_there_is_a_set_up_error(capsys):
    assert main(["score", "nowhere.json"]) == 2
    assert capsys.readouterr().err == "spinf: request nowhere.json: No such file or directory\n"


def test_a_wrong_setting_is_told_before_the_engine_starts(engine, request_file, capsys):
    assert main(["score", request_file, "--threads", "many"]) == 2
    assert capsys.readouterr().err == "spinf: --threads 'many': expected a whole number\n"
    assert engine.settings is None


def test_a_variable_that_nothing_reads_is_warned_of(engine, request_file, capsys, monkeypatch):
    monkeypatch.setenv("SPINF_THREAD", "2")

    assert main(["score", request_file]) == 0
    assert "warning: SPINF_THREAD is set, and nothing reads it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stacks", "mend"), [((), "pip install spinf-smollm2"), ((STACK,), "pip install 'spinf-core[engine]'")]
)
def test_without_the_engines_libraries_the_error_says_what_to_install(stacks, mend, request_file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "spinf_core.engine.engine", None)
    monkeypatch.setattr("spinf_core.plugins.discover", lambda disabled: attrs.evolve(discover(only=()), stacks=stacks))

    assert main(["score", request_file]) == 2
    assert mend in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_error():
    command = [sys.executable, "-m", "spinf_core.cli.main", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()

    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b""


# Scoring with a prompt pack


def test_packs_and_texts_make_a_request(engine, capsys):
    arguments = ["--pack", "demo/a@0.2:chat", "--pack", "demo/b", "--parameter", "brand=A=B", "--model", "small"]
    assert main(["score", *arguments, "one text", "another"]) == 0
    assert engine.model == "small"
    assert engine.request == {
        "inputs": [
            {"id": "0", "messages": [{"role": "user", "content": "one text"}], "parameters": {"brand": "A=B"}},
            {"id": "1", "messages": [{"role": "user", "content": "another"}], "parameters": {"brand": "A=B"}},
        ],
        "scoring": {
            "packs": [
                {"id": "demo/a", "version": "0.2", "context": "chat"},
                {"id": "demo/b", "version": None, "context": None},
            ]
        },
    }


@pytest.mark.parametrize("pair", ["brand", "=A"])
def test_a_parameter_without_a_name_or_a_value_is_a_usage_error(pair, capsys):
    assert main(["score", "--pack", "demo/a", "--parameter", pair, "text"]) == 2
    assert f"--parameter {pair}: expected NAME=VALUE" in capsys.readouterr().err


def test_two_models_without_a_pack_are_a_usage_error(request_file, capsys):
    assert main(["score", request_file, "small", "large"]) == 2
    assert "texts go with --pack" in capsys.readouterr().err


@pytest.mark.parametrize(("pack", "official"), [("spinf/moderation", True), ("demo/moderation", False)])
def test_the_official_packs_are_fetched_for_a_request_that_names_one(engine, pack, official):
    assert main(["score", "--pack", pack, "text"]) == 0
    assert engine.official_packs is official
