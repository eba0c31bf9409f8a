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


# Other requests and checkpoints stand for the reader's own, and a server does not end by itself.
STEPS = "quantization.md"
RUNS_ON = {"score": "examples/", "calibrate": "smollm2-135m", "quantize": "smollm2-135m"}


def runs_here(arguments: list[str]) -> bool:
    """Whether a command of `spinf` can be run by a test."""
    command = arguments[0]
    return command != "serve" and (command not in RUNS_ON or arguments[1].startswith(RUNS_ON[command]))


ALL_RUNNABLE = [line for line in commands("spinf") if runs_here(line[2])]
RUNNABLE = [line for line in ALL_RUNNABLE if line[0] != STEPS]


@pytest.mark.weights
@pytest.mark.parametrize(("page", "variables", "arguments"), RUNNABLE)
def test_every_spinf_line_that_runs_here_succeeds(page, variables, arguments, folder, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(arguments) == 0


@pytest.mark.weights
def test_calibrating_quantizing_and_scoring_succeed_one_after_another(folder):
    steps = [arguments for page, _, arguments in ALL_RUNNABLE if page == STEPS]
    assert [arguments[0] for arguments in steps] == ["calibrate", "quantize", "score"]
    assert [cli.main(arguments) for arguments in steps] == [0, 0, 0]


@pytest.mark.parametrize(("page", "variables", "arguments"), commands("make"))
def test_every_make_line_names_a_target(page, variables, arguments):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [word for word in arguments if "=" not in word and word not in targets] == []


@pytest.mark.parametrize(("page", "variables", "arguments"), commands("pip"))
def test_every_pip_line_installs_distributions_of_this_tree(page, variables, arguments):
    ours = {"spinf-core", *(f"spinf-{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml"))}
    assert arguments[0] == "install"
    assert set(arguments[1:]) <= ours


SCRIPTS = [
    (page.name, script, re.findall(r"--[a-z-]+", rest))
    for page in [*PAGES, *sorted((ROOT / "benchmarks").glob("*.md"))]
    for script, rest in re.findall(r"python ((?:benchmarks|docs|tests)/\S+\.py)([^`|\n]*)", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "script", "flags"), SCRIPTS)
def test_every_python_line_names_a_script_and_flags_that_it_has(page, script, flags):
    source = (ROOT / script).read_text(encoding="utf-8")
    assert [flag for flag in flags if f'"{flag}"' not in source] == []
