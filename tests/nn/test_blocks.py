"""Blocks of rows that see each other, and capped scores: both attentions against a dense softmax of the contract's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import random_probe
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.attention import Blocks, TreeAttention
from spinf_core.nn.cpu_attention import TiledTreeAttention
from spinf_core.nn.layout import TreeLayout
from spinf_core.stack import Pass

Attention = Callable[[TreeLayout], TreeAttention]


def triton(layout: TreeLayout) -> TreeAttention:
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    from spinf_core.nn.kernels.tree_attention import TritonTreeAttention

    return TritonTreeAttention.of(layout)


ATTENTIONS = [TiledTreeAttention, triton]

# Contents, and blocks in them by content: first depth and the one behind the last. They begin and end at every edge of a tile,
# fill several, follow one another, and end with the content.
CONTENTS = (200, 70, 0, 300, 64)
BLOCKS = ((0, 3, 10), (0, 10, 40), (0, 60, 69), (0, 128, 200), (1, 0, 70), (3, 63, 65), (3, 90, 260))


def make_pass(blocks: Sequence[tuple[int, int, int]] = BLOCKS, contents: Sequence[int] = CONTENTS) -> Pass:
    generator = np.random.default_rng(1)
    jobs = [random_probe(generator, 50, content, 5, 20).job() for content in contents]
    pass_ = lay_out([next(split(job, job.rows)) for job in jobs], Sizes.up_to(2048)).pass_
    block = pass_.block.copy()
    for number, (job, first, stop) in enumerate(blocks):
        start = pass_.segments[job, 0]
        block[start + first : start + stop] = number
    return attrs.evolve(pass_, block=block)


def laid_out(pass_: Pass) -> TreeLayout:
    return TreeLayout.build(pass_, None, torch.device("cpu"))


def inputs(rows: int, heads: int = 4, kv_heads: int = 2, width: int = 32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, count, width, generator=generator) for count in (heads, kv_heads, kv_heads)]


def dense(
    pass_: Pass, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, blocks: Blocks, cap: float | None
) -> Tensor:
    """In float64, by the rule of `Pass`."""
    row, job, block = np.arange(pass_.rows), pass_.job, pass_.block
    path = (row <= row[:, None]) & (row[:, None] < pass_.end)
    near = True if window is None else pass_.depth[:, None] - pass_.depth < window
    together = (block == block[:, None]) & (block >= 0)
    seen = {"apart": path & near, "windowed": (path | together) & near, "whole": (path & near) | together}[blocks]
    sees = torch.from_numpy(seen & (job == job[:, None]) & (job >= 0))
    group = q.shape[1] // k.shape[1]
    q, k, v = (each.double().transpose(0, 1) for each in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    scores = q @ k.mT * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    return torch.nan_to_num(scores.masked_fill(~sees, -torch.inf).softmax(-1) @ v).transpose(0, 1).float()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 9, 70, 100])
@pytest.mark.parametrize("blocks", ["windowed", "whole"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_equals_a_dense_softmax(attention: Attention, blocks: Blocks, window: int | None, softcap: float | None) -> None:
    pass_ = make_pass()
    q, k, v = inputs(pass_.rows)
    expected = dense(pass_, q, k, v, 0.3, window, blocks, softcap)
    found = attention(laid_out(pass_))(q, k, v, scale=0.3, window=window, blocks=blocks, softcap=softcap)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_layers_without_them_do_not_notice(attention: Attention) -> None:
    q, k, v = inputs(make_pass().rows)
    with_blocks, without = (attention(laid_out(make_pass(blocks)))(q, k, v, scale=0.3, window=70) for blocks in (BLOCKS, ()))
    assert torch.equal(with_blocks, without)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_job_keeps_its_bits_beside_others_with_blocks(attention: Attention, window: int | None) -> None:
    """Whether it has blocks of its own or none."""
    whole = make_pass(((0, 20, 100), (1, 0, 40)), (130, 40, 9))
    q, k, v = inputs(whole.rows)
    beside = attention(laid_out(whole))(q, k, v, scale=0.3, window=window, blocks="whole")
    for job, (start, _, stop) in enumerate(whole.segments):
        alone = attrs.evolve(whole, block=np.where(whole.job == job, whole.block, -1).astype(np.int32))
        found = attention(laid_out(alone))(q, k, v, scale=0.3, window=window, blocks="whole")
        assert torch.equal(found[start:stop], beside[start:stop])


@pytest.mark.parametrize("rows", [[5, 7], [300, 301]], ids=["apart", "after the cut"])
def test_rows_of_a_block_that_do_not_lie_together_in_a_content_are_refused(rows: list[int]) -> None:
    pass_ = make_pass((), (200, 0))
    pass_.block[[int(pass_.segments[0, 0]) + row if row < 200 else int(pass_.segments[0, 1]) + row - 300 for row in rows]] = 3
    with pytest.raises(ValueError, match="the rows of a block have to lie one behind another in a content"):
        laid_out(pass_)
