"""Kernels compiled ahead: by Triton's own machinery, on a device that is not there, with a compiler that makes nothing."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import torch

pytest.importorskip("triton", minversion="3.6", reason="the first triton that compiles from several threads")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import spinf_core.nn.kernels
from spinf_core.nn.kernels.launch import compiling_ahead, launcher


def _double(x, y, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at))


class NoDevice:
    """What Triton asks of a device before it compiles and launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Toolchain:
    """In the place of Triton's compiler: notes what is compiled and launched, by the kernel's SIZE.

    Attributes:
        before: called within each compilation.
    """

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.launched: list[int] = []
        self.before: Callable[[], object] = lambda: None

    def compile(self, source: Any, **options: Any) -> Any:
        (size,) = source.constants.values()
        self.compiled.append(size)
        self.before()
        return Compiled(lambda: self.launched.append(size))


class Compiled:
    function = packed_metadata = None

    def __init__(self, launch: Callable[[], None]) -> None:
        self._launch = launch

    def launch_metadata(self, *arguments: object) -> None:
        pass

    def run(self, *arguments: object) -> None:
        self._launch()


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    made = Toolchain()
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())
    monkeypatch.setattr("triton.compiler.compile", made.compile)
    return made


@pytest.fixture
def double(toolchain: Toolchain) -> Callable[[int], None]:
    """Launches the kernel at a size."""
    kernel = JITFunction(_double)
    x = torch.ones(64)

    def launch(size: int) -> None:
        launcher(kernel)[(1,)](x, x, SIZE=size, num_warps=1)

    return launch


def test_meanwhile_a_kernel_is_compiled_and_not_launched(toolchain: Toolchain, double: Callable[[int], None]) -> None:
    with compiling_ahead():
        double(16)
    assert (toolchain.compiled, toolchain.launched) == ([16], [])


def test_however_often_it_comes_it_is_compiled_once(toolchain: Toolchain, double: Callable[[int], None]) -> None:
    with compiling_ahead():
        for size in (16, 32, 16, 32, 16):
            double(size)
    assert sorted(toolchain.compiled) == [16, 32]


def test_kernels_are_compiled_at_the_same_time(
    toolchain: Toolchain, double: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    together = Barrier(3, timeout=10)  # breaks unless all three get there
    toolchain.before = together.wait
    with compiling_ahead():
        for size in (16, 32, 64):
            double(size)
    assert not together.broken
    assert not caplog.records


def test_afterwards_what_is_launched_has_been_compiled(toolchain: Toolchain, double: Callable[[int], None]) -> None:
    with compiling_ahead():
        double(16)
    double(16)
    assert (toolchain.compiled, toolchain.launched) == ([16], [16])


def test_a_failure_is_logged_and_the_kernel_compiled_when_it_is_launched(
    toolchain: Toolchain, double: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("ptxas was killed")

    toolchain.before = fail
    with caplog.at_level(logging.WARNING), compiling_ahead():
        double(16)
    assert ["ptxas was killed" in record.getMessage() for record in caplog.records] == [True]
    toolchain.before = lambda: None
    double(16)
    assert (toolchain.compiled, toolchain.launched) == ([16, 16], [16])


def test_another_thread_launches_meanwhile(toolchain: Toolchain, double: Callable[[int], None]) -> None:
    with compiling_ahead():
        other = Thread(target=double, args=(16,))
        other.start()
        other.join()
    assert toolchain.launched == [16]


def test_a_pass_that_breaks_off_leaves_launches_as_they_were(toolchain: Toolchain, double: Callable[[int], None]) -> None:
    with pytest.raises(ValueError, match="broken"), compiling_ahead():
        raise ValueError("broken")
    double(16)
    assert toolchain.launched == [16]


def test_without_it_a_kernel_is_its_own_launcher() -> None:
    kernel = object()
    assert launcher(kernel) is kernel


def test_every_kernel_of_the_tree_is_launched_by_it() -> None:
    passed_by = []
    for path in Path(spinf_core.nn.kernels.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        direct = [call for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)]
        passed_by += [f"{path.name}:{call.lineno}" for call in direct]
    assert passed_by == []
