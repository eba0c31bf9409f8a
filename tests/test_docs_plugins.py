"""docs/plugins.md covers every hook, and its examples work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from spinf_core.cli.main import main
from spinf_core.hookspecs import SpinfSpecs
from spinf_core.manifests import load_manifest
from spinf_core.plugins import discover
from spinf_core.settings import load_settings

PAGE = (Path(__file__).parent.parent / "docs/plugins.md").read_text(encoding="utf-8")
HOOKS = sorted(name for name in vars(SpinfSpecs) if name.startswith("spinf_"))
HEADINGS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def executed(block: str, file: Path) -> dict[str, object]:
    namespace: dict[str, object] = {"__file__": str(file), "__name__": "example"}
    exec(compile(block, "docs/plugins.md", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_section_with_an_example(hook):
    assert hook in HEADINGS
    section = PAGE.split(f"## {hook}\n")[1].split("\n## ")[0]
    assert "```python" in section


@pytest.mark.parametrize("block", blocks("python"))
def test_every_example_composes_without_a_failure(block, tmp_path):
    (tmp_path / "manifests").mkdir()
    namespace = executed(block, tmp_path / "plugin.py")
    hooks = {name: value for name, value in namespace.items() if name in HOOKS}
    if not hooks:
        return

    plugins = discover(only=(), extra=[("example", SimpleNamespace(**hooks))], environ={})

    assert plugins.failures == ()
    assert "example" in [plugin.name for plugin in plugins.loaded]


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_file_is_valid(block, tmp_path):
    path = tmp_path / "example.toml"
    path.write_text(block)
    if "family =" in block:
        assert load_manifest(path).available
    else:
        assert tomllib.loads(block)


def test_the_hello_plugin_runs_as_its_page_says(distribution, capsys):
    plugin, command = (next(b for b in blocks("python") if b.startswith(f"# spinf_hello/{n}.py")) for n in ("plugin", "hello"))
    modules = {"hello_plugin": plugin.replace("spinf_hello.hello", "hello_command"), "hello_command": command}
    distribution("spinf-hello", "0.1.0", {"hello": "hello_plugin"}, modules)

    assert main(["hello", "Ada"]) == 0
    assert capsys.readouterr().out.startswith("Hello Ada, there are ")


def test_the_settings_example_reaches_the_record(tmp_path):
    block = next(block for block in blocks("python") if "HelloSettings" in block)
    hook = executed(block, tmp_path)["spinf_commands"]
    plugins = discover(only=(), extra=[("example", SimpleNamespace(spinf_commands=hook))], environ={})
    path = tmp_path / "spinf.toml"
    path.write_text(next(block for block in blocks("toml") if "[plugin.hello]" in block))
    environ = dict(re.findall(r"export (SPINF_\w+)=(\w+)", PAGE))

    settings = load_settings(file=path, environ=environ, plugins=plugins).of_record(plugins.command("hello").record)

    assert (settings.greeting, settings.times) == ("Good morning", 2)
