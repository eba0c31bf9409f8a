"""How many threads run, which scheme a CPU chooses, and what memory a process keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spinf_core.engine import processor, schemes
from spinf_core.engine.processor import default_threads
from spinf_core.engine.schemes import automatic
from spinf_core.testing.toy_plugin import toy_engine

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Fakes the processors that may be used, the logical processors of each core, and the control group's quota."""

    def fake(usable: set[int], cores: list[str], quota: str | None = None) -> None:
        for number in usable:
            topology = tmp_path / f"cpu{number}" / "topology"
            topology.mkdir(parents=True)
            shared = next(core for core in cores if str(number) in core.split(","))
            (topology / "thread_siblings_list").write_text(shared + "\n")
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota + "\n")
        monkeypatch.setattr(processor, "_CPUS", tmp_path)
        monkeypatch.setattr(processor, "_QUOTA", tmp_path / "cpu.max")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable, raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    return fake


HYPER = ["0,4", "1,5", "2,6", "3,7"]


@pytest.mark.parametrize(
    ("usable", "cores", "quota", "threads"),
    [
        (set(range(8)), HYPER, None, 4),
        ({0, 1, 4, 5}, HYPER, None, 2),
        (set(range(8)), HYPER, "max 100000", 4),
        (set(range(8)), HYPER, "250000 100000", 3),
        (set(range(8)), HYPER, "50000 100000", 1),
        ({0, 1}, ["0", "1"], None, 2),
    ],
    ids=["two to a core", "bound to two cores", "no quota", "two and a half processors", "half a processor", "one to a core"],
)
def test_threads_are_the_physical_cores_that_may_be_used(machine, usable, cores, quota, threads) -> None:
    machine(usable, cores, quota)
    assert default_threads() == threads


def test_what_the_environment_says_is_left_to_torch(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine({0, 1}, ["0", "1"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert default_threads() is None


@pytest.mark.parametrize(("native", "name"), [(True, "bf16"), (False, "fp32")])
def test_a_cpu_runs_bf16_where_its_products_are_native(monkeypatch, tmp_path: Path, native: bool, name: str) -> None:
    monkeypatch.setattr(schemes, "native_bf16", lambda: native)
    for static_fp8 in (False, True):
        assert automatic(CPU, static_fp8, tmp_path).name == name


def test_the_start_up_table_says_why_it_is_that_scheme(monkeypatch, tmp_path: Path, own_cache: Path, untested: None) -> None:
    monkeypatch.setattr(schemes, "native_bf16", lambda: False)
    with toy_engine(tmp_path / "toy", settings={"engine.quant": None}) as engine:
        assert ("scheme", "fp32 (this processor has no bfloat16 products)") in [row[:2] for row in engine.composition]
    with toy_engine(tmp_path / "toy") as engine:
        assert ("scheme", "fp32") in [row[:2] for row in engine.composition]


FAULTS = """
import resource, sys, torch
from spinf_core.engine.allocation import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def touch():
    # Above what glibc would come to keep by itself, 32 MiB.
    kept = [torch.ones(12_000_000) for _ in range(2)]
for _ in range(3):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is asked")
def test_freed_memory_is_used_again_without_the_system() -> None:
    faults = {}
    for how in ("keep", "leave"):
        run = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        faults[how] = int(run.stdout)
    assert faults["keep"] < faults["leave"] / 3
