"""The examples of docs/prompt-packs.md do what the page says."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from spinf_core.cli.main import main
from spinf_core.packs.file import pack_of
from spinf_core.packs.loading import load_catalog
from spinf_core.packs.request import with_packs
from spinf_core.plugins import discover
from spinf_core.protocol import Features, parse_request
from spinf_core.settings import load_settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/prompt-packs.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def example(kind: str) -> Any:
    return json.loads(block(f"json {kind}"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The page's own repository."""
    (tmp_path / "returns").mkdir()
    (tmp_path / "returns/1.0.0.json").write_text(block("json pack"), encoding="utf-8")
    (tmp_path / "prompt-packs.json").write_text(block("json manifest"), encoding="utf-8")
    return tmp_path


def test_the_repository_validates(repository, monkeypatch, capsys):
    monkeypatch.setenv("SPINF_PLUGINS", "core")
    assert main(["packs", "validate", str(repository)]) == 0
    assert "kestrel/returns  1.0.0" in capsys.readouterr().out


def test_the_draft_is_one():
    assert pack_of("draft", example("draft")).draft


def test_the_evaluation_prints_what_the_page_says():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "prompt-packs.md", "exec"), {"PACK": example("pack")})
    assert printed.getvalue() == block("text output")


def test_the_request_is_one_that_the_demonstration_packs_take():
    settings = load_settings({"features.packs": (str(ROOT / "fixtures/packs"),), "features.official_packs": False}, environ={})
    catalog = load_catalog(settings, discover(only=()), {"smollm2-135m"}, lambda line: None)
    request = parse_request(example("request"), features=Features(packs=catalog.known))
    request, (run,) = with_packs(request, catalog)
    assert request.warnings == ()
    assert request.inputs[0].content == "A chat with Kestrel. Customer: My parcel is late.\n"
    shown = example("result")
    answers = {
        (query.id, value.get("F")): [0.5] * len(query.options) for query in run.pack.queries for value in query.combinations
    }
    result = run.result(answers)
    assert list(result) == list(shown)
    assert shown["categories"].keys() <= result["categories"].keys()
    assert {*shown["decision"]} == {*result["decision"]}


LINES = [shlex.split(line) for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in text.splitlines()]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_command_line_parses(words):
    assert words[0] == "spinf"
    parser = argparse.ArgumentParser()
    importlib.import_module(f"spinf_core.cli.{words[1]}").configure(parser)
    parser.parse_args(words[2:])


def test_every_field_of_an_entry_is_in_the_table():
    from spinf_core.protocol.request import PackEntry

    table = PAGE.split("| field of an entry |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [field.name for field in PackEntry.__attrs_attrs__]
