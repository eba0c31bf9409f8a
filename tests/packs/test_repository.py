"""Repositories, the catalog made of them, and the spinf packs command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spinf_core.cli.main import main
from spinf_core.errors import SetupError
from spinf_core.packs.catalog import Catalog, version_key
from spinf_core.packs.golden import check_golden
from spinf_core.packs.loading import load_catalog
from spinf_core.packs.repository import read_repository
from spinf_core.plugins import discover
from spinf_core.settings import load_settings

FIXTURES = Path(__file__).parents[2] / "fixtures/packs"
PLUGINS = discover(only=())
MODEL = "smollm2-135m"


def catalog(*sources: Path | str, names: Any = (MODEL,), notes: list[str] | None = None, **flags: Any) -> Catalog:
    values = {"features.packs": tuple(map(str, sources)), "features.official_packs": False}
    values |= {f"features.{name}": value for name, value in flags.items()}
    return load_catalog(load_settings(values, environ={}), PLUGINS, names, ([] if notes is None else notes).append)


def refused(*sources: Path | str, **how: Any) -> list[str]:
    with pytest.raises(SetupError) as caught:
        catalog(*sources, **how)
    return str(caught.value).splitlines()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES, tmp_path / "packs"))


def edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_golden_fixtures_hold() -> None:
    for each in read_repository(FIXTURES, "fixtures").packs:
        assert each.pack is not None
        assert each.fixture is not None
        assert check_golden(each.pack, each.fixture) == []


def test_a_golden_fixture_that_does_not_hold_says_where(repository: Path) -> None:
    edit(repository / "news/golden.json", lambda g: g["cases"][0]["expected"]["categories"]["opinion"].update(score=0.5))
    news = next(each for each in read_repository(repository, "x").packs if each.id == "demo/news")
    (problem,) = check_golden(news.pack, news.fixture)
    assert problem.startswith("case 0: categories.opinion.score is ")
    assert problem.endswith("and 0.500000 was expected")


def test_the_fixtures_are_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIXTURES.parent))
    from make_packs import files

    written = {place: (FIXTURES / place).read_text(encoding="utf-8") for place in files()}
    assert files() == written


def test_moderation_shows_every_part_of_the_format() -> None:
    pack = json.loads((FIXTURES / "moderation/0.1.0.json").read_text(encoding="utf-8"))
    assert len(pack["scoring"]["queries"]) >= 40
    assert len(pack["categories"]) >= 12
    assert {read["kind"] for read in pack["reads"]} == {"pair", "option", "any", "set"}
    assert any("aggregate" in each for each in pack["categories"].values())
    assert any("requires" in each for each in pack["categories"].values())
    assert pack["decision"]["critical"]


# Catalogs


def test_packs_without_a_manifest_are_found(repository: Path) -> None:
    (repository / "prompt-packs.json").unlink()
    assert len(catalog(repository).enabled) == 5


def test_versions_for_other_models_are_left_out_with_one_line_each() -> None:
    notes: list[str] = []
    assert catalog(FIXTURES, names=("other",), notes=notes).enabled == {}
    assert len(notes) == 5
    assert notes[0] == f"pack demo/moderation 0.1.0 of {FIXTURES} is not enabled: it is written for the model {MODEL}"


def test_a_model_is_known_by_its_aliases_in_any_case() -> None:
    assert len(catalog(FIXTURES, names=("x", "SmolLM2-135M")).enabled) == 5


def test_every_error_of_every_source_is_listed(repository: Path, tmp_path: Path) -> None:
    edit(repository / "news/0.1.0.json", lambda pack: pack.update(answers="x", contexts={}))
    lines = refused(repository, tmp_path / "missing")
    assert lines[0] == f'{repository}: prompt-packs.json: news/0.1.0.json: answers must be "p" or "logprob", not "x"'
    assert len(lines) == 3
    assert "there is no such folder" in lines[2]


def test_one_id_from_two_sources_is_refused(repository: Path) -> None:
    lines = refused(FIXTURES, repository)
    assert lines[0] == f"pack demo/moderation is in two sources, {FIXTURES} and {repository}; leave one of them out"
    assert len(lines) == 5


def test_an_announced_version_and_a_draft_are_left_out(repository: Path) -> None:
    edit(repository / "prompt-packs.json", lambda m: m["packs"][4]["versions"][0].update(status="coming_soon"))
    edit(repository / "reviews/0.1.0.json", lambda p: [p.pop(name) for name in ("reads", "categories", "decision")])
    notes: list[str] = []
    assert set(catalog(repository, notes=notes).enabled) == {"demo/moderation", "demo/support-triage", "demo/product-listings"}
    assert [note.partition(": ")[2] for note in notes] == [
        "it is a draft: its constants are not fitted",
        "it is announced and not available yet",
    ]


def test_an_announced_version_needs_no_file(repository: Path) -> None:
    (repository / "news/0.1.0.json").unlink()
    edit(repository / "prompt-packs.json", lambda m: m["packs"][4]["versions"][0].update(status="coming_soon"))
    assert "demo/news" not in catalog(repository).enabled


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.update(format=2), "format must be 1"),
        (lambda m: m.update(namespace="other"), "pack demo/moderation is not in the repository's namespace other"),
        (lambda m: m["packs"][0]["versions"][0].update(file="../x.json"), 'file: "../x.json" leaves the repository'),
        (lambda m: m["packs"][0]["versions"][0].update(file="/etc/passwd"), 'file: "/etc/passwd" leaves the repository'),
        (lambda m: m["packs"][0]["versions"][0].update(file="none.json"), 'file: "none.json" is not there'),
        (lambda m: m["packs"][0]["versions"][0].update(version="2"), "version is 2 in prompt-packs.json and 0.1.0 in"),
        (lambda m: m["packs"][0]["versions"][0].update(model="x"), f"model is x in prompt-packs.json and {MODEL} in"),
        (lambda m: m["packs"][0]["versions"][0].update(status="old"), "status must be one of available, deprecated"),
        (lambda m: m["packs"].append(m["packs"][0]), "packs has pack demo/moderation 0.1.0 twice"),
        (lambda m: m.update(packs={}), "packs must be a list"),
    ],
)
def test_each_problem_of_a_manifest_is_named(repository: Path, change: Any, expected: str) -> None:
    edit(repository / "prompt-packs.json", change)
    assert any(expected in line for line in refused(repository))


def test_a_file_that_is_a_link_out_of_the_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_bytes((repository / "news/0.1.0.json").read_bytes())
    (repository / "news/0.1.0.json").unlink()
    (repository / "news/0.1.0.json").symlink_to(outside)
    assert any("leaves the repository" in line for line in refused(repository))


def test_a_scheme_that_nobody_brings_says_what_to_install() -> None:
    assert "pip install spinf-packs-github" in refused("github:o/r@v1")[0]


def test_the_official_packs_need_their_plugin_and_are_not_fatal() -> None:
    notes: list[str] = []
    assert catalog(FIXTURES, notes=notes, official_packs=True).enabled
    assert notes[-1:] == [notes[0]]
    assert notes[0].startswith("the official packs are left out: no pack source for github: is installed; pip install")


def test_versions_are_ordered_by_their_numbers() -> None:
    versions = ["0.10.0", "0.9.0", "1.0.0", "0.10.0-rc1", "0.9"]
    assert sorted(versions, key=version_key) == ["0.9", "0.9.0", "0.10.0-rc1", "0.10.0", "1.0.0"]


# spinf packs


@pytest.fixture(autouse=True)
def _core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINF_PLUGINS", "core")
    monkeypatch.setenv("SPINF_OFFICIAL_PACKS", "0")


def test_validate_prints_a_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "validate", str(FIXTURES)]) == 0
    header, moderation, *rest = capsys.readouterr().out.splitlines()
    assert header.split() == ["pack", "version", "model", "status", "queries", "prompts", "lock"]
    assert moderation.split() == ["demo/moderation", "0.1.0", MODEL, "available", "45", "48", "ok"]
    assert len(rest) == 4


def test_validate_exits_1_and_lists_every_problem(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(repository / "news/0.1.0.json", lambda pack: pack.update(answers="x", contexts={}))
    assert main(["packs", "validate", str(repository)]) == 1
    shown = capsys.readouterr().out
    assert "news/0.1.0.json: answers must be" in shown
    assert "news/0.1.0.json: contexts must be" in shown
    assert shown.endswith("\n2 problems\n")


def test_validate_tells_a_broken_lock_and_a_fixture_that_does_not_hold(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / "moderation/0.1.0.json", lambda pack: pack["reads"][0].update(mean=5.0))
    assert main(["packs", "validate", str(repository)]) == 1
    shown = capsys.readouterr().out
    assert "broken" in shown
    assert "moderation/0.1.0.json: decision.micro_layer.lock does not fit" in shown
    assert "golden.json of demo/moderation@0.1.0: case 0: categories.spam.score is" in shown


def test_validate_takes_a_draft(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(repository / "reviews/0.1.0.json", lambda p: [p.pop(name) for name in ("reads", "categories", "decision")])
    assert main(["packs", "validate", str(repository)]) == 0
    assert "draft" in capsys.readouterr().out


def test_list_shows_enabled_and_left_out_packs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "list", "--packs", str(FIXTURES), "--model", "smollm2-135m"]) == 0
    assert "demo/moderation" in capsys.readouterr().out.partition("left out")[0]
    assert main(["packs", "list", "--packs", str(FIXTURES), "--model", "other"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no pack is enabled for other")
    assert f"demo/moderation 0.1.0 of {FIXTURES}: it is written for the model {MODEL}" in shown


def test_show_tells_what_a_pack_asks_and_that_its_constants_are_synthetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "show", "demo/moderation", "--packs", str(FIXTURES), "--model", MODEL]) == 0
    shown = capsys.readouterr().out
    assert "synthetic" in shown
    assert "requires sexual; critical" in shown
    assert "decision by micro_layer" in shown


def test_show_gives_the_file_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "show", "demo/news@0.1.0", "--json", "--packs", str(FIXTURES), "--model", MODEL]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((FIXTURES / "news/0.1.0.json").read_text(encoding="utf-8"))


def test_show_of_a_pack_that_is_not_there_says_how_to_find_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "show", "demo/none", "--packs", str(FIXTURES), "--model", MODEL]) == 2
    assert "name its source with --packs" in capsys.readouterr().err


def test_nothing_heavy_is_imported_for_packs() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from spinf_core.cli.main import main; "
        f"main(['packs', 'validate', {str(FIXTURES)!r}]); "
        "print([name for name in ('torch', 'numpy', 'fastapi', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
