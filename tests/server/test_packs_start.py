"""Packs at start: of a server process, of its loading, and of the library."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spinf_core.server import run
from spinf_core.server.state import ServerState
from spinf_core.testing.toy_plugin import toy_engine

from .conftest import PACKS, PLUGINS, fixture_pack, loaded_for_packs, settings_with, toy_pack


def test_an_error_in_a_given_source_stops_the_server_with_the_list(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(fixture_pack("news") | {"answers": "x", "contexts": {}}), encoding="utf-8")
    command = [sys.executable, "-m", "spinf_core.cli.main", "serve", "smollm2-135m", "--port", "0", "--packs", str(tmp_path)]
    environ = os.environ | {"SPINF_OFFICIAL_PACKS": "0", "SPINF_PLUGINS": "core"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 2
    assert f'{tmp_path}: bad.json: answers must be "p" or "logprob"' in done.stderr
    assert f"{tmp_path}: bad.json: contexts must be" in done.stderr
    assert "Traceback" not in done.stderr
    assert "loading" not in done.stderr


def test_a_server_tells_which_packs_it_serves_and_which_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("news", "reviews"):
        (tmp_path / f"{name}.json").write_text(json.dumps(toy_pack(name)), encoding="utf-8")
    settings = settings_with(features__packs=(str(tmp_path), str(PACKS / "moderation")))
    monkeypatch.setattr(run, "load", lambda *_: loaded_for_packs())
    monkeypatch.setattr(run, "warm_up", lambda *_: None)
    state = ServerState(settings, PLUGINS)
    notes: list[str] = []
    run._load(state, "toy", "asked for", [], notes.append)
    gc.unfreeze()
    assert state.service is not None
    state.service.close()
    assert state.service.packs.ids == {"demo/news", "demo/reviews"}
    told = "\n".join(notes)
    assert "the official packs are left out: no pack source for github: is installed" in told
    assert "pack demo/moderation 0.1.0 of" in told
    assert "is not enabled: it is written for the model smollm2-135m" in told
    assert "demo/news@0.1.0" in next(note for note in notes if note.startswith("model"))


def test_the_library_loads_the_packs_of_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path / "cache"))
    folder, model = tmp_path / "packs", tmp_path / "toy"
    folder.mkdir()
    (folder / "news.json").write_text(json.dumps(toy_pack("news", model=str(model))), encoding="utf-8")
    flags = {"features.packs": (str(folder),), "limits.max_option_tokens": 20}
    notes: list[str] = []
    with toy_engine(model, settings=flags, progress=notes.append) as engine:
        assert engine.packs.ids == {"demo/news"}
        body = {"messages": [{"content": "A red gate"}], "scoring": {"packs": [{"id": "demo/news"}]}}
        packs = engine.score(body).results[0].packs
    assert packs is not None
    assert packs[0]["id"] == "demo/news"
    assert not any("official" in note for note in notes)
