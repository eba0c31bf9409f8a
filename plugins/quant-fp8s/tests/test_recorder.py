"""What a recorder notes: real rows alone, and only while a pass is watched."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from spinf_quant_fp8s.recorder import Recorder

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import SetupError
from spinf_core.nn.linear import Linear
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import Pass

ROWS = 5  # of tokens, in a pass of 16


@pytest.fixture
def pass_() -> Pass:
    job = Probe((1, 2, 3), ((4, 5),)).job()
    laid_out = lay_out(list(split(job, job.rows)), Sizes.up_to(64)).pass_
    assert (laid_out.rows, int((laid_out.job >= 0).sum())) == (16, ROWS)
    return laid_out


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Unquantized("fp32"))


def linear(recorder: Recorder, checkpoint, *names: str) -> Linear:
    weights = checkpoint({f"{name}.weight": torch.randn(16, 4) for name in names})
    return recorder.linear(weights, names, (16,) * len(names), 4)


def test_a_linear_gives_what_it_gave_before(recorder: Recorder, checkpoint, pass_: Pass) -> None:
    weight = torch.randn(16, 4)
    x = torch.randn(16, 4)
    recording = recorder.linear(checkpoint({"a.weight": weight}), ("a",), (16,), 4)

    with recorder.watching(pass_):
        assert torch.equal(recording(x), x @ weight.T)


def test_the_largest_magnitude_of_any_pass_is_kept_for_each_of_merged_modules(
    recorder: Recorder, checkpoint, pass_: Pass
) -> None:
    recording = linear(recorder, checkpoint, "a", "b")
    for value in (2.0, -7.0, 3.0):
        with recorder.watching(pass_):
            recording(torch.full((16, 4), value))

    assert recorder.largest() == {"a": 7.0, "b": 7.0}


@pytest.mark.parametrize("padding", [100.0, torch.nan, torch.inf])
def test_padding_does_not_count(recorder: Recorder, checkpoint, pass_: Pass, padding: float) -> None:
    recording = linear(recorder, checkpoint, "a")
    x = torch.ones(16, 4)
    x[ROWS:] = padding
    with recorder.watching(pass_):
        recording(x)

    assert recorder.largest() == {"a": 1.0}


def test_a_linear_that_is_given_the_rows_read_alone_has_no_padding(recorder: Recorder, checkpoint, pass_: Pass) -> None:
    recording = linear(recorder, checkpoint, "a")
    with recorder.watching(pass_):
        recording(torch.full((len(pass_.reads), 4), 9.0))
    with recorder.watching(attrs.evolve(pass_, reads=np.empty(0, np.int32))):
        recording(torch.empty(0, 4))

    assert recorder.largest() == {"a": 9.0}


def test_rows_that_cannot_be_told_from_padding_are_refused(recorder: Recorder, checkpoint, pass_: Pass) -> None:
    recording = linear(recorder, checkpoint, "a")
    with pytest.raises(SetupError, match="a is given 7 rows in a pass of 16"), recorder.watching(pass_):
        recording(torch.ones(7, 4))


def test_what_runs_outside_a_pass_does_not_count(recorder: Recorder, checkpoint, pass_: Pass) -> None:
    recording = linear(recorder, checkpoint, "a")
    recording(torch.full((16, 4), 100.0))
    with recorder.watching(pass_):
        recording(torch.ones(16, 4))
    recording(torch.full((16, 4), 100.0))

    assert recorder.largest() == {"a": 1.0}


def test_linears_that_nothing_reached_are_named(recorder: Recorder, checkpoint, pass_: Pass) -> None:
    recording = linear(recorder, checkpoint, "a")
    linear(recorder, checkpoint, "experts.3.up", "experts.3.gate")
    with recorder.watching(pass_):
        recording(torch.ones(16, 4))

    with pytest.raises(SetupError, match=r"reached experts\.3\.gate, experts\.3\.up, so .*; add requests"):
        recorder.largest()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_input_that_is_no_number_is_named_by_the_first_linear(
    recorder: Recorder, checkpoint, pass_: Pass, value: float
) -> None:
    recordings = [linear(recorder, checkpoint, name) for name in ("a", "b", "c")]
    watched = recorder.watching(pass_)
    watched.__enter__()
    for recording, each in zip(recordings, (1.0, value, value), strict=True):
        recording(torch.full((16, 4), each))

    with pytest.raises(SetupError, match=rf"the input of b holds {value}, in fp32; "):
        watched.__exit__(None, None, None)
