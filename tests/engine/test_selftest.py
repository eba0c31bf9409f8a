"""The self-test: what it finds, where its result is kept, and what follows when it fails; and the fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spinf_core.engine import loading
from spinf_core.engine.fingerprint import compilers
from spinf_core.engine.selftest import SelfTest, kept_self_test
from spinf_core.quant.unquantized import Unquantized
from spinf_core.testing.requests import numbers, query, request
from spinf_core.testing.toy import ToyModel
from spinf_core.testing.toy_plugin import toy_engine, write_toy_checkpoint

Runs = list[str]
PASSED = SelfTest((), "0123456789abcdef", 0.5)
SMALL = {"engine.token_budget": 64, "engine.max_tokens": 64}
ORDINARY = request("the gate is red", query("\nIs it red?"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A mark for every self-test that is really run; it passes at once."""
    made: Runs = []

    def run(model: object, sizes: object, progress: Callable[[str], None]) -> SelfTest:
        made.append("run")
        return PASSED

    monkeypatch.setattr(loading, "self_test", run)
    return made


class TestKept:
    def test_it_runs_once(self, tmp_path: Path, own_cache: Path, runs: Runs) -> None:
        for _ in range(3):
            toy_engine(tmp_path / "toy").close()
        assert len(runs) == 1
        assert len(list((own_cache / "self-test").iterdir())) == 1

    @pytest.mark.parametrize(
        "change", [{"seed": 1}, {"window": 7}, {"bos": True}, {"settings": {"engine.token_budget": 64}}], ids=str
    )
    def test_again_when_what_it_depends_on_changes(
        self, tmp_path: Path, own_cache: Path, runs: Runs, change: dict[str, Any]
    ) -> None:
        toy_engine(tmp_path / "toy").close()
        toy_engine(tmp_path / "other", **change).close()
        assert len(runs) == 2

    def test_again_when_it_is_asked_for(self, tmp_path: Path, own_cache: Path, runs: Runs) -> None:
        toy_engine(tmp_path / "toy").close()
        toy_engine(tmp_path / "toy", settings={"engine.self_test": True}).close()
        assert len(runs) == 2

    @pytest.mark.parametrize(
        "damage", [b"", b"{", b"[]", b"null", b'{"failures": []}', b'{"failures": 5, "digest": "", "seconds": 0}', b"\xff"]
    )
    def test_again_when_its_record_is_damaged(self, tmp_path: Path, damage: bytes) -> None:
        (tmp_path / "key.json").write_bytes(damage)
        assert kept_self_test(tmp_path, "key", lambda: PASSED, again=False) == PASSED
        assert json.loads((tmp_path / "key.json").read_text())["digest"] == PASSED.digest

    def test_failures_are_kept_too(self, tmp_path: Path) -> None:
        failed = SelfTest(("feed-forward: rows change",), "abc", 1.0)
        assert kept_self_test(tmp_path, "key", lambda: failed, again=False) == failed
        assert kept_self_test(tmp_path, "key", lambda: PASSED, again=False) == failed

    def test_a_cache_that_cannot_be_written_stops_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        assert kept_self_test(tmp_path / "file", "key", lambda: PASSED, again=False) == PASSED


@pytest.fixture
def unstable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A toy whose hidden rows depend on how many rows share the pass."""
    forward = ToyModel.forward

    def wavering(self: ToyModel, pass_: Any, past: Any = None, keep: Any = None) -> tuple[Tensor, Any]:
        hidden, state = forward(self, pass_, past, keep)
        return hidden * (1 + pass_.rows * 1e-6), state

    with monkeypatch.context() as patch:
        patch.setattr(ToyModel, "forward", wavering)
        yield


class TestFailed:
    def test_the_scheme_counts_as_not_invariant(self, tmp_path: Path, own_cache: Path, unstable: None) -> None:
        with toy_engine(tmp_path / "toy", settings=SMALL) as engine:
            assert ("scheme", "fp32, not invariant here", "spinf-core 0.1.0") in engine.composition
            assert engine.fingerprint.endswith("_v")

    def test_floors_are_not_cached(self, tmp_path: Path, own_cache: Path, unstable: None) -> None:
        with toy_engine(tmp_path / "toy", settings=SMALL) as engine:
            first, second = engine.score(ORDINARY), engine.score(ORDINARY)
        assert first.usage.processed_tokens == second.usage.processed_tokens
        assert numbers(first) == numbers(second)

    def test_it_is_said_at_the_start(self, tmp_path: Path, own_cache: Path, unstable: None) -> None:
        lines: list[str] = []
        toy_engine(tmp_path / "toy", settings=SMALL, progress=lines.append).close()
        (warning,) = [line for line in lines if line.startswith("warning")]
        assert "scores vary with the packing" in warning
        assert "floors are not cached" in warning

    def test_a_scheme_that_says_so_itself_counts_as_not_invariant_whatever_the_self_test_finds(
        self, tmp_path: Path, own_cache: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Unquantized, "invariant", False)
        with toy_engine(tmp_path / "toy") as engine:
            assert ("scheme", "fp32, not invariant here", "spinf-core 0.1.0") in engine.composition
            assert engine.fingerprint.endswith("_v")

    def test_otherwise_nothing_is_said(self, tmp_path: Path, own_cache: Path) -> None:
        lines: list[str] = []
        with toy_engine(tmp_path / "toy", settings=SMALL, progress=lines.append) as engine:
            assert ("scheme", "fp32", "spinf-core 0.1.0") in engine.composition
            assert not engine.fingerprint.endswith("_v")
        assert lines
        assert not any(line.startswith("warning") for line in lines)


def fingerprint(folder: Path, **fields: Any) -> str:
    with toy_engine(folder, **fields) as engine:
        return engine.fingerprint


@pytest.mark.usefixtures("own_cache", "runs")
class TestFingerprint:
    def test_it_is_the_same_for_the_same_checkpoint_anywhere(self, tmp_path: Path) -> None:
        assert fingerprint(tmp_path / "toy") == fingerprint(tmp_path / "toy") == fingerprint(tmp_path / "copy")

    def test_every_response_carries_it(self, tmp_path: Path) -> None:
        with toy_engine(tmp_path / "toy") as engine:
            assert engine.score(ORDINARY).system_fingerprint == engine.fingerprint
            assert engine.fingerprint.startswith("fp_")

    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 1},
            {"window": 7},
            {"bos": True},
            {"settings": {"engine.token_budget": 64}},
            {"settings": {"engine.lm_head": "bf16"}},
        ],
        ids=["weights", "config", "BOS", "sizes", "precision of the head"],
    )
    def test_it_changes_with_what_moves_a_score(self, tmp_path: Path, change: dict[str, Any]) -> None:
        assert fingerprint(tmp_path / "toy") != fingerprint(tmp_path / "other", **change)

    def test_it_names_triton_where_its_kernels_run(self) -> None:
        triton = pytest.importorskip("triton")
        assert compilers(torch.device("cuda")) == f"{torch.__version__}, triton {triton.__version__}"
        assert compilers(torch.device("cpu")) == torch.__version__

    def test_it_changes_with_the_number_of_threads(self, tmp_path: Path) -> None:
        before = torch.get_num_threads()
        try:
            one, two = (fingerprint(tmp_path / "toy", settings={"engine.threads": count}) for count in (1, 2))
        finally:
            torch.set_num_threads(before)
        assert one != two

    @pytest.mark.parametrize(
        ("target", "name", "value"),
        [
            ("spinf_core.engine.fingerprint", "NUMERICS", 99),
            ("spinf_core.testing.toy.ToyModel", "numerics", 99),
            ("spinf_core.quant.unquantized.Unquantized", "numerics", 99),
            ("torch", "__version__", "2.99.0"),
        ],
        ids=["core", "stack", "scheme", "torch"],
    )
    def test_it_changes_with_any_arithmetic(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str, value: object
    ) -> None:
        before = fingerprint(tmp_path / "toy")
        monkeypatch.setattr(f"{target}.{name}", value)
        assert fingerprint(tmp_path / "toy") != before

    def test_it_changes_with_the_self_test_s_outputs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = fingerprint(tmp_path / "toy")
        monkeypatch.setattr(loading, "self_test", lambda *arguments: SelfTest((), "another", 0.0))
        assert fingerprint(tmp_path / "toy", settings={"engine.self_test": True}) != before


def test_a_checkpoint_changed_in_place_is_noticed(tmp_path: Path, own_cache: Path, runs: Runs) -> None:
    before = fingerprint(write_toy_checkpoint(tmp_path / "toy"))
    assert fingerprint(write_toy_checkpoint(tmp_path / "toy", seed=1)) != before
    assert len(runs) == 2
