"""The pieces of models against torch's and transformers' own, and that no row depends on another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from spinf_core.errors import SetupError
from spinf_core.nn.activation import gelu_tanh, sigmoid, silu
from spinf_core.nn.head import LMHead
from spinf_core.nn.linear import ROW_BLOCK, InputFormat, blocked_product
from spinf_core.nn.norm import RMSNorm
from spinf_core.nn.rotary import Rotary, interleaved_axes, inverse_frequencies, rotate, rotate_first

ACTIVATIONS = [(silu, F.silu), (sigmoid, torch.sigmoid), (gelu_tanh, partial(F.gelu, approximate="tanh"))]
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS)
def test_activations(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.linspace(-90, 90, 4001, dtype=dtype)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("activation", [silu, sigmoid, gelu_tanh])
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 100, 1000])
def test_activations_do_not_depend_on_where_a_row_lies(activation: Callable[[Tensor], Tensor], rows: int) -> None:
    row = torch.randn(37, generator=torch.Generator().manual_seed(0))
    results = activation(row.repeat(rows, 1))
    assert torch.equal(results, activation(row[None]).expand(rows, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    theirs = LlamaRMSNorm(48, eps=1e-5)
    theirs.weight.data = torch.randn(48)
    theirs = theirs.to(dtype)
    x = torch.randn(7, 48).to(dtype)
    assert torch.equal(RMSNorm(theirs.weight.data, 1e-5)(x), theirs(x))


@pytest.mark.parametrize("parameters", [{"rope_type": "default", "rope_theta": 10000.0}, LLAMA_3], ids=["default", "llama3"])
def test_rotary_embedding(parameters: dict[str, float]) -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=1024, rope_parameters=parameters)
    q, k = torch.randn(2, 1, 2, 600, 32)
    positions = torch.arange(600)[None]
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    expected, _ = apply_rotary_pos_emb(q, k, cos, sin)
    tables = Rotary(inverse_frequencies(32, parameters), torch.device("cpu")).tables(np.arange(600), torch.float32)
    torch.testing.assert_close(rotate(q[0].transpose(0, 1), tables), expected[0].transpose(0, 1))


def test_rotary_embedding_on_interleaved_axes() -> None:
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding
    from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb as apply_to_a_part

    sections = [6, 5, 5]
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": sections}
    config = Qwen3_5TextConfig(head_dim=64, rope_parameters=parameters)
    q, k = torch.randn(2, 1, 2, 50, 64)
    positions = torch.randint(0, 300, (3, 50))
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(q, positions[:, None])
    expected, _ = apply_to_a_part(q, k, cos, sin)
    rotary = Rotary(inverse_frequencies(32, parameters), torch.device("cpu"), interleaved_axes(16, sections))
    found = rotate_first(q[0].transpose(0, 1), rotary.tables(positions.numpy(), torch.float32))
    torch.testing.assert_close(found, expected[0].transpose(0, 1))


def test_an_unknown_rope_type_is_refused() -> None:
    with pytest.raises(SetupError, match="rope type 'dynamic' is not implemented"):
        inverse_frequencies(32, {"rope_type": "dynamic", "rope_theta": 10000.0})


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_head_gives_log_probabilities(softcap: float | None) -> None:
    weight, hidden = torch.randn(50, 8) * 4, torch.randn(3, 8)
    rows, columns = torch.tensor([0, 2, 2]), torch.tensor([49, 0, 7])
    logits, normaliser = LMHead(weight, softcap).read(hidden, rows, columns)
    whole = hidden.double() @ weight.double().T
    whole = whole if softcap is None else softcap * torch.tanh(whole / softcap)
    torch.testing.assert_close(logits - normaliser[rows], whole.log_softmax(-1)[rows, columns].float())


@pytest.mark.parametrize("scale", [None, 0.5])
def test_an_input_format_is_written_without_overflow(scale: float | None) -> None:
    """Ten times the largest number that the scale was calibrated for stays finite (the kind of fault of case G1)."""
    format_ = InputFormat(torch.float8_e4m3fn, scale)
    x = torch.tensor([0.0, 1.0, -3.0, 448.0 * (scale or 1), 4480.0 * (scale or 1), -1e30])
    if scale is None:
        x = x[:4]
    written = format_.write(x).float()
    assert torch.isfinite(written).all()
    expected = (x / (scale or 1)).clamp(-448, 448)
    torch.testing.assert_close(written, expected, rtol=0.07, atol=0)


def test_an_input_format_clamps_before_it_casts() -> None:
    # In float16, whose cast gives infinity; casts to fp8 saturate with some versions of torch and give NaN with others.
    written = InputFormat(torch.float16, 2.0).write(torch.tensor([1e9, -1e9, 4.0]))
    assert written.tolist() == [65504.0, -65504.0, 2.0]


@pytest.mark.parametrize("rows", [1, ROW_BLOCK, ROW_BLOCK + 1, 3 * ROW_BLOCK - 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_by_blocks_of_rows(rows: int, with_bias: bool) -> None:
    x, weight, bias = torch.randn(rows, 12), torch.randn(5, 12), torch.randn(5)
    found = blocked_product(x, weight, bias if with_bias else None)
    torch.testing.assert_close(found, F.linear(x, weight, bias if with_bias else None))
