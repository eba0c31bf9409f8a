from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from spinf_packs_github.cache import cache_root

from spinf_core.packs.loading import load_catalog
from spinf_core.plugins import Plugins, discover
from spinf_core.settings import load_settings


def composed() -> Plugins:
    module = EntryPoint("packs-github", "spinf_packs_github.plugin", "spinf").load()
    return discover(only=(), extra=[("packs-github", module)], strict=True, environ={})


def test_a_server_reaches_github_by_its_settings(github, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    plugins = composed()
    environ = {"SPINF_GITHUB_API_URL": github.api.url, "SPINF_OFFICIAL_PACKS": "0"}
    settings = load_settings({"features.packs": ("github:o/r@v1",)}, environ=environ, plugins=plugins)
    assert settings.warnings == ()
    catalog = load_catalog(settings, plugins, {"toy"}, github.notes.append)
    assert {id_: [each.source for each in versions] for id_, versions in catalog.enabled.items()} == {
        "demo/small": ["github:o/r@v1"]
    }
    assert {token for _, token in github.api.asked} == {"Bearer secret"}


def test_an_official_source_that_cannot_be_reached_is_told_and_not_fatal(github):
    github.api.stop()
    plugins = composed()
    settings = load_settings(environ={"SPINF_GITHUB_API_URL": github.api.url, "SPINF_GITHUB_TIMEOUT": "1"}, plugins=plugins)
    assert load_catalog(settings, plugins, {"toy"}, github.notes.append).enabled == {}
    (note,) = github.notes
    assert note.startswith("the official packs are left out: packs github:spinfinc/spinf-prompts@0.1.0: ")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"SPINF_PACKS_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/spinf/packs"),
        ({"HOME": "/c"}, "/c/.cache/spinf/packs"),
    ],
)
def test_the_cache_is_where_it_is_said_to_be(monkeypatch, environ, folder):
    for name in ("SPINF_PACKS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(folder)
