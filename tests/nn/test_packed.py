"""Packed bfloat16 linears on the CPU, and whether a processor has such products at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from spinf_core.nn import packed
from spinf_core.nn.linear import InputFormat, PlainLinear
from spinf_core.nn.packed import GatedLinear, PackedLinear, native_bf16, pack

needs_packing = pytest.mark.skipif(not packed.packs(), reason="oneDNN has no bfloat16 products here")
SIZES = [16, 48, 64, 112, 240, 512]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(torch.bfloat16)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes torch say nothing of the processor, oneDNN claim bfloat16 products, and Linux list some flags."""

    def fake(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(packed, "packs", lambda: True)
        monkeypatch.setattr(packed, "_CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch, "cpu", SimpleNamespace())

    return fake


@pytest.mark.parametrize(
    ("text", "native"),
    [
        ("model name\t: x\nflags\t\t: fpu avx512f avx512_bf16 fsrm\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n", True),
        ("flags\t\t: fpu avx512f avx512bw avx512_vnni\n", False),
        ("flags\t\t: fpu avx2\nbugs\t\t: bf16\n", False),
        ("", False),
    ],
    ids=["zen 4", "sapphire rapids", "graviton 3", "cascade lake", "no flag of its own", "unknown"],
)
def test_bfloat16_is_native_where_linux_names_its_products(processor, text: str, native: bool) -> None:
    processor(text)
    assert native_bf16() is native


@pytest.mark.parametrize("native", [True, False])
def test_what_torch_says_of_the_processor_comes_first(monkeypatch: pytest.MonkeyPatch, processor, native: bool) -> None:
    processor("" if native else "flags: avx512_bf16")
    told = {"avx512_bf16": native, "cpu_name": "amx_bf16", "l2_cache_size": 1}
    monkeypatch.setattr(torch, "cpu", SimpleNamespace(get_capabilities=lambda: told))
    assert native_bf16() is native


def test_a_processor_whose_products_torch_does_not_use_has_none(monkeypatch: pytest.MonkeyPatch, processor) -> None:
    processor("flags: avx512_bf16")
    monkeypatch.setattr(packed, "packs", lambda: False)
    assert not native_bf16()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    linear = PlainLinear(torch.ones(4, 8, dtype=dtype))
    assert pack(linear) is linear


@needs_packing
@pytest.mark.parametrize("bias", [None, numbers(96)], ids=["no bias", "bias"])
def test_what_is_fused_is_rounded_once(bias: torch.Tensor | None) -> None:
    weight, x, other = numbers(96, 64), numbers(48, 64), numbers(48, 96)
    linear = pack(PlainLinear(weight, bias))
    assert isinstance(linear, PackedLinear)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())

    for found, expected in (
        (linear(x), exact),
        (linear.added(x, other), exact + other.double()),
        (linear.times(x, other), exact * other.double()),
        (linear.activated(x, "silu"), F.silu(exact)),
        (linear.activated(x, "gelu_tanh"), F.gelu(exact, approximate="tanh")),
    ):
        assert found.dtype == torch.bfloat16
        # Half a step of bfloat16, and a little for sums in float32 and for approximate exponentials.
        torch.testing.assert_close(found.double(), expected, rtol=2**-8 * 1.02, atol=2e-5)


@needs_packing
@pytest.mark.parametrize("rows", SIZES)
def test_a_row_has_the_same_bits_at_every_multiple_of_16(rows: int) -> None:
    linear, x, other = PackedLinear(numbers(96, 64)), numbers(SIZES[-1], 64), numbers(SIZES[-1], 96)
    for found, among in (
        (linear(x[:rows]), linear(x)),
        (linear.added(x[:rows], other[:rows]), linear.added(x, other)),
        (linear.times(x[:rows], other[:rows]), linear.times(x, other)),
        (linear.activated(x[:rows], "silu"), linear.activated(x, "silu")),
    ):
        assert torch.equal(found, among[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_linear_is_the_activated_gate_times_the_rest(dtype: torch.dtype, activation) -> None:
    weight, x = numbers(64, 32).to(dtype), numbers(16, 32).to(dtype)
    gate, up = F.linear(x.double(), weight.double()).chunk(2, 1)
    expected = (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up

    found = GatedLinear(PlainLinear(weight), 32, activation, None)(x)

    assert found.dtype == dtype
    largest = expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=largest * (1e-6 if dtype == torch.float32 else 2**-8))


def test_a_gated_linear_writes_the_format_of_the_linear_behind() -> None:
    found = GatedLinear(PlainLinear(numbers(64, 32)), 32, "silu", InputFormat(torch.float32))(numbers(16, 32))
    assert found.dtype == torch.float32
