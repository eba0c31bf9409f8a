"""Devices by number and by UUID, on a machine whose GPUs are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from spinf_core.engine.devices import choose_device
from spinf_core.errors import SetupError
from spinf_core.records import ModelStack
from spinf_core.registry import Registered

# Two that begin alike, as `nvidia-smi -L` prints them.
UUIDS = (
    "GPU-8a2f1c34-0000-4111-8222-abcdefabcdef",
    "GPU-8a2f9d00-1111-4222-8333-0123456789ab",
    "GPU-c0ffee00-2222-4333-8444-ba9876543210",
)


def stack(*devices: str) -> Registered[ModelStack]:
    record = ModelStack(name="s", summary="", family="toy", model_types=("toy",), factory="a:b", devices=devices)
    return Registered(record, "s", "spinf-s", "1.0")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch prints a UUID without what nvidia-smi puts in front."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(UUIDS))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=UUIDS[number].removeprefix("GPU-"))
    )


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("asked", "index"),
    [(UUIDS[0], 0), (UUIDS[2], 2), ("GPU-8a2f9", 1), ("GPU-c", 2), (UUIDS[1].upper(), 1), ("cuda:1", 1)],
)
def test_a_gpu_goes_by_its_number_its_uuid_and_the_beginning_of_that(asked: str, index: int) -> None:
    assert choose_device(asked, stack("cuda", "cpu")) == torch.device("cuda", index)


@pytest.mark.usefixtures("gpus")
def test_an_unknown_uuid_is_refused_with_those_that_are_here() -> None:
    with pytest.raises(SetupError, match="device 'GPU-dead' is not here; the GPUs here are ") as caught:
        choose_device("GPU-dead", stack("cuda"))
    assert all(f"{uuid} (cuda:{number})" in str(caught.value) for number, uuid in enumerate(UUIDS))


@pytest.mark.usefixtures("gpus")
def test_the_beginning_of_several_uuids_is_refused() -> None:
    with pytest.raises(SetupError, match="'GPU-8a2f' is the beginning of 2 UUIDs; write more of it"):
        choose_device("GPU-8a2f", stack("cuda"))


def test_without_a_gpu_a_uuid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SetupError, match=r"device 'GPU-8a2f' is not here; torch .* sees no GPU"):
        choose_device("GPU-8a2f", stack("cuda"))


def test_a_stack_that_runs_on_no_gpu_is_named() -> None:
    with pytest.raises(SetupError, match=r"the toy stack of spinf-s 1\.0 runs on cpu, not on GPU-8a2f"):
        choose_device("GPU-8a2f", stack("cpu"))


@pytest.mark.parametrize("asked", ["gpu", "cuda:x", "8a2f1c34"])
def test_what_is_no_device_is_told_what_is(asked: str) -> None:
    with pytest.raises(SetupError, match=r"is not known; use auto, cpu, cuda, cuda:N or a GPU's UUID"):
        choose_device(asked, stack("cuda"))
