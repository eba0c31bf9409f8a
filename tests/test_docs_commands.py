"""Command lines in the documentation are ones that work."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from spinf_core.cli import main as cli

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/README.md")])


def commands(first: str) -> list[tuple[str, dict[str, str], list[str]]]:
    """Console lines that run this program: the page, the variables set in front, the arguments."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^\$ (.+)$", block, re.MULTILINE):
                words = shlex.split(line, comments=True)
                variables = dict(words.pop(0).split("=", 1) for _ in range(len(words)) if re.match(r"[A-Z_]+=", words[0]))
                if words[0] == first:
                    found.append((page.name, variables, words[1:]))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    (tmp_path / "spinf.toml").write_text(re.search(r"^```toml\n(# spinf.toml\n.*?)^```$", page, re.M | re.S)[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "variables", "arguments"), commands("spinf"))
def test_every_spinf_line_parses(page, variables, arguments, monkeypatch):
    real = cli.load_factory
    parsed = []

    def stand_in(item):
        return SimpleNamespace(configure=real(item).configure, run=lambda arguments: parsed.append(arguments) or 0)

    monkeypatch.setattr(cli, "load_factory", stand_in)
    assert cli.main(arguments) == 0
    assert len(parsed) == 1


# Other requests stand for the reader's own, and a server does not end by itself.
RUNNABLE = [
    line
    for line in commands("spinf")
    if line[2][0] != "serve" and (line[2][0] != "score" or line[2][1].startswith("examples/"))
]


@pytest.mark.weights
@pytest.mark.parametrize(("page", "variables", "arguments"), RUNNABLE)
def test_every_spinf_line_that_runs_here_succeeds(page, variables, arguments, folder, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(arguments) == 0


@pytest.mark.parametrize(("page", "variables", "arguments"), commands("make"))
def test_every_make_line_names_a_target(page, variables, arguments):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [word for word in arguments if "=" not in word and word not in targets] == []


@pytest.mark.parametrize(("page", "variables", "arguments"), commands("pip"))
def test_every_pip_line_installs_distributions_of_this_tree(page, variables, arguments):
    ours = {"spinf-core", *(f"spinf-{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml"))}
    assert arguments[0] == "install"
    assert set(arguments[1:]) <= ours
