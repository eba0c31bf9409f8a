"""`spinf score` as its users meet it. The engine is stood in for."""

from __future__ import annotations

import io
import json
import sys
from types import ModuleType, SimpleNamespace

import attrs
import pytest

from spinf_core import ModelStack, Rejected, SetupError
from spinf_core.cli.main import main
from spinf_core.plugins import Registered, discover


@pytest.fixture(autouse=True)
def _no_settings(no_settings_from_outside):
    """Before any other fixture."""


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
