"""Toy engines, each loaded once, with a cache of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spinf_core.engine import loading
from spinf_core.engine.engine import Engine
from spinf_core.engine.selftest import SelfTest
from spinf_core.testing.toy_plugin import toy_engine

Engines = Callable[..., Engine]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """The models here are tiny, and threads that wait for one another cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """`engines(bos=True, window=7, settings={…})`: a toy engine of those properties, shared by the session's tests."""
    root = tmp_path_factory.mktemp("engines")
    made: dict[str, Engine] = {}

    def engine(*, window: int | None = None, bos: bool = False, settings: dict[str, Any] | None = None) -> Engine:
        name = repr((window, bos, settings))
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SPINF_CACHE", str(root / "cache"))
                made[name] = toy_engine(root / f"toy-{window}-{bos}", window=window, bos=bos, settings=settings)
        return made[name]

    yield engine
    for each in made.values():
        each.close()


@pytest.fixture
def toy(engines: Engines) -> Engine:
    """A toy engine without BOS."""
    return engines()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines whose self-test passes at once, for tests of something else."""
    monkeypatch.setattr(loading, "self_test", lambda *arguments: SelfTest((), "0123456789abcdef", 0.0))
