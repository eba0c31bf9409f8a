"""The recurrent layers' Triton kernels in the interpreter, against their twins in plain torch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton has no wheel for this platform")

sys.path.insert(0, str(Path(__file__).parent))

from test_delta import SHAPES, a_few_rows, continued, make_layout, make_pass, make_terms

from spinf_core.errors import SetupError
from spinf_core.nn.convolution import PathTaps, convolve
from spinf_core.nn.delta import TorchTreeDelta
from spinf_core.nn.gated_norm import GatedRMSNorm
from spinf_core.nn.kernels import tree_delta as kernels
from spinf_core.nn.kernels.convolution import convolve as convolve_in_triton
from spinf_core.nn.kernels.gated_norm import gated_norm
from spinf_core.nn.walks import RecurrencePlan

CPU = torch.device("cpu")
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_equals_plain_torch(shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SCAN_COLUMNS", 16)
    monkeypatch.setattr(kernels, "WALK_COLUMNS", 16)
    pass_ = make_pass(11, contents=(1, 64, 65, 0), branches=4, longest=12)
    terms = make_terms(pass_.rows, shape)
    plan = RecurrencePlan.build(make_layout(pass_), a_few_rows(pass_))

    expected, expected_kept = TorchTreeDelta(plan)(*terms)
    found, kept = kernels.TritonTreeDelta(plan, CPU)(*terms)

    torch.testing.assert_close(found, expected, **CLOSE)
    assert kept is not None
    assert expected_kept is not None
    torch.testing.assert_close(kept, expected_kept, **CLOSE)


@pytest.mark.parametrize("decay", [0.0, -1e4])
def test_the_same_key_again_and_again_loses_no_digits(decay: float) -> None:
    pass_ = make_pass(21, contents=(70,), branches=2, longest=4)
    q, k, v, g, beta = make_terms(pass_.rows, SHAPES["as many"])
    terms = q, k[:1].expand_as(k), v, torch.full_like(g, decay), torch.ones_like(beta)
    plan = RecurrencePlan.build(make_layout(pass_))
    torch.testing.assert_close(kernels.TritonTreeDelta(plan, CPU)(*terms)[0], TorchTreeDelta(plan)(*terms)[0], **CLOSE)


def test_a_row_does_not_change_with_what_shares_its_pass() -> None:
    small, large = (make_pass(12, contents=contents, branches=3, longest=9) for contents in ((70,), (70, 5, 0)))
    rows = int(small.segments[0, 2])
    terms = make_terms(large.rows, SHAPES["as many"])
    alone, _ = kernels.TritonTreeDelta(RecurrencePlan.build(make_layout(small)), CPU)(*(term[: small.rows] for term in terms))
    packed, _ = kernels.TritonTreeDelta(RecurrencePlan.build(make_layout(large)), CPU)(*terms)
    assert torch.equal(alone[:rows], packed[:rows])


def test_heads_in_groups_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_ = make_pass(13, contents=(65,), branches=3, longest=6)
    terms = make_terms(pass_.rows, SHAPES["in groups"])
    run = kernels.TritonTreeDelta(RecurrencePlan.build(make_layout(pass_), [2, 66]), CPU)
    expected, expected_kept = run(*terms)
    monkeypatch.setattr(kernels, "STATE_BYTES", 1)
    found, kept = run(*terms)
    assert torch.equal(found, expected)
    assert kept is not None
    assert expected_kept is not None
    assert torch.equal(kept, expected_kept)


def test_rows_behind_a_kept_state_are_the_same_bits() -> None:
    pass_ = make_pass(14, contents=(3, 66), branches=3, longest=6)
    _, cut_row, stop = pass_.segments[1]
    terms = make_terms(pass_.rows, SHAPES["one key head"])
    plan = RecurrencePlan.build(make_layout(pass_), [cut_row - 1])
    expected, kept = kernels.TritonTreeDelta(plan, CPU)(*terms)

    _, layout = continued(pass_, [cut_row - 1])
    found, _ = kernels.TritonTreeDelta(RecurrencePlan.build(layout), CPU)(*terms, kept)

    assert torch.equal(found[cut_row:stop], expected[cut_row:stop])


def test_widths_that_are_not_run_are_refused_by_name() -> None:
    with pytest.raises(SetupError, match="heads of width 24"):
        kernels.check_widths(128, 24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [None, 0.25])
def test_the_convolution_equals_plain_torch(norm: float | None, dtype: torch.dtype) -> None:
    pass_ = make_pass(15, contents=(3, 66), branches=4, longest=6)
    _, cut_row, _ = pass_.segments[1]
    whole = PathTaps.build(make_layout(pass_), 3, [cut_row - 1])
    wide = torch.randn(pass_.rows, 70).to(dtype)
    inputs, weight = wide[:, :60], torch.randn(60, 4)  # rows that are a part of wider ones
    _, layout = continued(pass_, [cut_row - 1])
    kept = whole.kept(inputs, None)
    for taps, past in ((whole, None), (PathTaps.build(layout, 3), kept)):
        expected = convolve(inputs, weight, taps, past, first=12, heads=2, width=24, norm=norm)
        found = convolve_in_triton(inputs, weight, taps, past, 12, 2, 24, norm)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gated_norm_equals_plain_torch(dtype: torch.dtype) -> None:
    x, wide, weight = torch.randn(13, 3, 24), torch.randn(13, 80).to(dtype), torch.randn(24)
    expected = GatedRMSNorm(weight, 1e-5)(x, wide[:, 8:])
    found = gated_norm(x, wide[:, 8:], weight, 1e-5)
    torch.testing.assert_close(found, expected, **(CLOSE if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}))


def test_tables_hold_every_chunk_of_every_run() -> None:
    plan = RecurrencePlan.build(make_layout(make_pass(16, contents=(1, 64, 65, 200))))
    row, rows = kernels._tables(plan, CPU).chunk
    counts = [count for content in (1, 64, 65, 200) for count in [64] * (content // 64) + [content % 64] if count]
    assert rows.tolist() == counts
    assert np.all(np.diff(row.numpy()) > 0)
