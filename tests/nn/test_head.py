"""The LM head's precisions against float64, from bfloat16 weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spinf_core.nn.head import VOCABULARY_CHUNK, HeadPrecision, LMHead

HIDDEN = 64


def made(vocabulary: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and a weight in bfloat16, and their logits in float64."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, HIDDEN, generator=generator).to(torch.bfloat16)
    weight = torch.randn(vocabulary, HIDDEN, generator=generator).to(torch.bfloat16)
    return hidden, weight, hidden.double() @ weight.double().T


@pytest.mark.parametrize("precision", ["f32out", "fp32"])
@pytest.mark.parametrize("vocabulary", [300, VOCABULARY_CHUNK, VOCABULARY_CHUNK + 7])
def test_f32out_and_fp32_lose_next_to_nothing(precision: HeadPrecision, vocabulary: int) -> None:
    hidden, weight, exact = made(vocabulary)

    logits = LMHead(weight, precision=precision).logits(hidden)

    assert (logits.dtype, logits.shape) == (torch.float32, exact.shape)
    torch.testing.assert_close(logits.double(), exact, rtol=1e-6 if precision == "fp32" else 2**-16, atol=1e-5)


def test_bf16_rounds_every_logit_to_bfloat16() -> None:
    hidden, weight, exact = made()

    logits = LMHead(weight, precision="bf16").logits(hidden)

    assert logits.dtype == torch.float32
    assert torch.equal(logits, logits.to(torch.bfloat16).float())
    torch.testing.assert_close(logits.double(), exact, rtol=2**-8 * 1.01, atol=1e-4)
    assert (logits.double() - exact).abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["f32out", "fp32", "bf16"])
def test_a_float32_weight_is_multiplied_in_float32_whatever_the_precision(precision: HeadPrecision) -> None:
    hidden, weight, exact = made()

    logits = LMHead(weight.float(), precision=precision).logits(hidden.float())

    torch.testing.assert_close(logits.double(), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("precision", ["f32out", "fp32"])
def test_what_is_read_are_capped_logits_and_their_log_sum_exp(precision: HeadPrecision) -> None:
    hidden, weight, exact = made()
    rows, columns = torch.tensor([0, 4, 4]), torch.tensor([7, 0, 299])

    found, normaliser = LMHead(weight, softcap=5.0, precision=precision).read(hidden, rows, columns)

    capped = 5 * torch.tanh(exact / 5)
    rtol = 1e-6 if precision == "fp32" else 2**-16
    torch.testing.assert_close(found.double(), capped[rows, columns], rtol=rtol, atol=1e-5)
    torch.testing.assert_close(normaliser.double(), torch.logsumexp(capped, 1), rtol=rtol, atol=1e-5)


def test_columns_are_found_in_whichever_part_of_the_vocabulary_they_lie() -> None:
    hidden, weight, exact = made(VOCABULARY_CHUNK + 7)
    rows, columns = torch.tensor([0, 1, 1, 3]), torch.tensor([VOCABULARY_CHUNK - 1, VOCABULARY_CHUNK, 5, VOCABULARY_CHUNK + 6])

    found, normaliser = LMHead(weight.float()).read(hidden.float(), rows, columns)

    torch.testing.assert_close(found.double(), exact[rows, columns], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(normaliser.double(), torch.logsumexp(exact, 1), rtol=1e-6, atol=1e-5)
