"""Kernels compiled before the self-test: what is run for it, and that nothing but time depends on it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from spinf_core.engine import ahead, loading
from spinf_core.engine.ahead import compile_ahead
from spinf_core.engine.selftest import SelfTest
from spinf_core.engine.sizes import Sizes
from spinf_core.nn import graphs
from spinf_core.stack import Model
from spinf_core.testing.toy import ToyModel
from spinf_core.testing.toy_plugin import toy_engine

pytest.importorskip("triton", minversion="3.6", reason="the first triton that compiles from several threads")

from spinf_core.nn.kernels.launch import launcher

SIZES = Sizes.up_to(64)
ON_CUDA = cast(Model, SimpleNamespace(device=torch.device("cuda")))


def launches(kernel: object) -> bool:
    return launcher(kernel) is kernel


def test_it_runs_a_pass_the_head_and_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyModel()
    ran: list[str] = []

    def noted(name: str, call: Any) -> Any:
        return lambda *arguments: (ran.append(name), call(*arguments))[1]

    operations = [
        SimpleNamespace(width=each.width, dtype=each.dtype, call=noted(each.name, each.call)) for each in model.operations()
    ]
    monkeypatch.setattr(model, "operations", lambda: operations)
    monkeypatch.setattr(model, "forward", noted("pass", model.forward))
    monkeypatch.setattr(model, "read", noted("head", model.read))
    ahead._run(model, SIZES)
    assert ran == ["pass", "head", *(each.name for each in ToyModel().operations())]


def test_meanwhile_kernels_are_not_launched_and_no_pass_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(ahead, "_run", lambda model, sizes: seen.append((launches(object()), graphs._unrecorded.get())))
    compile_ahead(ON_CUDA, SIZES)
    assert seen == [(False, True)]
    assert (launches(object()), graphs._unrecorded.get()) == (True, False)


def test_whatever_fails_is_logged_and_left_to_the_self_test(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(model: Model, sizes: Sizes) -> None:
        raise RuntimeError("no such intrinsic")

    monkeypatch.setattr(ahead, "_run", fail)
    compile_ahead(ON_CUDA, SIZES)
    assert ["no such intrinsic" in record.getMessage() for record in caplog.records] == [True]
    assert launches(object())


def test_a_cpu_has_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(ahead, "_run", lambda model, sizes: lines.append("ran"))
    compile_ahead(ToyModel(), SIZES, lines.append)
    assert lines == []


def test_it_comes_before_the_self_test_and_where_its_result_is_kept(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def test(*arguments: object) -> SelfTest:
        order.append("self-test")
        return SelfTest((), "0123456789abcdef", 0.0)

    monkeypatch.setattr(loading, "compile_ahead", lambda *arguments: order.append("compiling"))
    monkeypatch.setattr(loading, "self_test", test)
    for _ in range(2):
        toy_engine(tmp_path / "toy").close()
    assert order == ["compiling", "self-test", "compiling"]
