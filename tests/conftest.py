from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings

# Kernels run in Triton's interpreter, which must be said before anything imports triton, as torch does.
os.environ["TRITON_INTERPRET"] = "1"

# Where nobody looks for new counterexamples, the same ones are tried every time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

Distribution = Callable[..., Path]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distribution]:
    """Installs a fake distribution: `distribution("spinf-x", "1.0", {"x": "x_plugin"}, {"x_plugin": source})`."""
    before = set(sys.modules)

    def install(name: str, version: str, plugins: Mapping[str, str], modules: Mapping[str, str]) -> Path:
        folder = tmp_path / f"site-{len(list(tmp_path.glob('site-*')))}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        entries = "\n".join(f"{plugin} = {target}" for plugin, target in plugins.items())
        (info / "entry_points.txt").write_text(f"[spinf]\n{entries}\n")
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(dedent(source))
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        return folder

    yield install
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


@pytest.fixture
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes spinf's variables out of the environment."""
    for name in [name for name in os.environ if name.startswith("SPINF_")]:
        monkeypatch.delenv(name)
