"""The row kernels in Triton's interpreter, against their plain torch twins."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from spinf_core.nn import activation, heads, norm
from spinf_core.nn.linear import InputFormat
from spinf_core.nn.norm import RMSNorm

pytest.importorskip("triton", reason="triton has no wheel for this platform")

from spinf_core.nn.kernels import rows
from spinf_core.nn.kernels.head import log_sum_exp

DTYPES = [torch.float32, torch.bfloat16]
FORMATS = [None, InputFormat(torch.float16, 0.01), InputFormat(torch.float16, 2.0**-17)]  # the last is small enough to clamp
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-5}  # the interpreter rounds towards zero, up to three times


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == expected.dtype
    size = expected.float().abs().mean().item()  # sums may cancel
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance * size, rtol=max(tolerance, 2**-10))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize(("weighted", "wide"), [(False, False), (True, False), (True, True)])
def test_rms_norm(dtype: torch.dtype, output: InputFormat | None, weighted: bool, wide: bool) -> None:
    x = random(5, 3, 40, dtype=dtype)
    twin = RMSNorm(random(40, dtype=dtype, seed=1) if weighted else None, 1e-6, output, wide=wide)
    close(rows.rms_norm(x, twin.parameters, output), twin(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize(("sandwich", "scalar"), [(False, None), (True, None), (True, 0.375)])
def test_add_norm(dtype: torch.dtype, output: InputFormat | None, sandwich: bool, scalar: float | None) -> None:
    x, update = random(6, 72, dtype=dtype), random(6, 72, dtype=dtype, seed=1)
    after = RMSNorm(random(72, dtype=dtype, seed=2), 1e-6, wide=True) if sandwich else None
    then = RMSNorm(random(72, dtype=dtype, seed=3), 1e-5, output)
    found = rows.add_norm(x, update, after.parameters if after else None, scalar, then.parameters, output)
    for mine, expected in zip(found, norm.add_norm(x, update, after, scalar, then), strict=True):
        close(mine, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gated_activation(dtype: torch.dtype, output: InputFormat | None, kind: Literal["silu", "gelu_tanh"]) -> None:
    merged = random(4, 2 * 1100, dtype=dtype) * 8
    gate, up = merged.chunk(2, dim=1)
    close(rows.gated(gate, up, kind == "gelu_tanh", output), activation.gated(gate, up, kind, output), dtype)


@pytest.mark.parametrize("output", FORMATS)
def test_what_is_not_a_number_stays_so(output: InputFormat | None) -> None:
    gate = torch.full((1, 16), torch.nan)
    assert rows.gated(gate, torch.ones(1, 16), False, output).isnan().all()


@pytest.mark.parametrize("value", [-1e4, -90.0, -0.0, 90.0, 1e4])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gated_activation_is_finite_far_out(value: float, kind: Literal["silu", "gelu_tanh"]) -> None:
    gate = torch.full((1, 16), value)
    torch.testing.assert_close(
        rows.gated(gate, torch.ones(1, 16), kind == "gelu_tanh", None), activation.gated(gate, torch.ones(1, 16), kind, None)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("projected", [1, 2, 3])
@pytest.mark.parametrize("normed", [False, True])
def test_turned_heads(dtype: torch.dtype, projected: int, normed: bool) -> None:
    head_dim, q_heads, kv_heads, count = 24, 6, 3, 7
    merged = random(count, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    parts = torch.split(merged, [q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)[:projected]
    angles = random(count, 1, head_dim // 2, dtype=torch.float32, seed=1)
    tables = angles.cos(), angles.sin()
    weights = [random(head_dim, dtype=dtype, seed=seed) for seed in (2, 3)]
    q_norm, k_norm, v_norm = (RMSNorm(weight, 1e-6, wide=True) if normed else None for weight in (*weights, None))
    # In float32 throughout, for the kernel rounds once and its twin three times.
    wide = [
        None if each is None else RMSNorm(None if each.weight is None else each.weight.float(), 1e-6)
        for each in (q_norm, k_norm, v_norm)
    ]
    expected = heads.turned_heads(tuple(part.float() for part in parts), head_dim, tables, *wide)
    views = [part.view(count, -1, head_dim) for part in parts]
    norms = [each.parameters if each else None for each in (q_norm, k_norm, v_norm)]
    found = rows.turned_heads(
        views[0], (views[1], views[-1]) if projected > 1 else None, (norms[0], norms[1], norms[2]), tables
    )
    for mine, theirs in zip(found, expected, strict=False):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.float(), theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("vocabulary", [5, 4096, 9000])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_log_sum_exp(vocabulary: int, softcap: float | None) -> None:
    logits = random(3, vocabulary, dtype=torch.float32) * 8
    wide = logits.double()
    expected = torch.logsumexp(wide if softcap is None else softcap * torch.tanh(wide / softcap), dim=1)
    torch.testing.assert_close(log_sum_exp(logits, softcap), expected.float(), atol=1e-5, rtol=1e-6)
