"""The gated delta rule and the short convolution on tries, against a plain loop over each path."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe, random_probe
from spinf_core.engine.sizes import Sizes
from spinf_core.nn import walks
from spinf_core.nn.convolution import PathTaps, convolve
from spinf_core.nn.delta import TorchTreeDelta, tree_delta
from spinf_core.nn.gated_norm import GatedRMSNorm
from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.state import keep_paths
from spinf_core.nn.walks import RecurrencePlan
from spinf_core.stack import Pass

CPU = torch.device("cpu")
CONTENTS = (1, 3, 63, 64, 65, 0, 130)
SHAPES = {"one key head": (1, 2, 16, 32), "as many": (2, 2, 16, 16), "in groups": (2, 6, 32, 16)}  # K, V, Dk, Dv

Terms = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def make_pass(seed: int, contents: tuple[int, ...] = CONTENTS, branches: int = 5, longest: int = 20) -> Pass:
    generator = np.random.default_rng(seed)
    jobs = [random_probe(generator, 50, content, branches, longest).job() for content in contents]
    return lay_out([next(split(job, job.rows)) for job in jobs], Sizes.up_to(2048)).pass_


def make_layout(pass_: Pass) -> TreeLayout:
    return TreeLayout.build(pass_, None, CPU)


def make_terms(rows: int, shape: tuple[int, int, int, int], seed: int = 0) -> Terms:
    generator = torch.Generator().manual_seed(seed)
    key_heads, value_heads, key_width, value_width = shape

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    q, k = (torch.nn.functional.normalize(draw(rows, key_heads, key_width), dim=-1) for _ in range(2))
    k[rows // 2 :] = 0.9 * k[:1] + 0.1 * k[rows // 2 :]  # keys that are all but the same, as repeated words make them
    k = torch.nn.functional.normalize(k, dim=-1)
    gates = draw(2, rows, value_heads)
    return q, k, draw(rows, value_heads, value_width), -torch.exp(gates[0] - 2), torch.sigmoid(gates[1])


def path_of(pass_: Pass, row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = int(pass_.parent[row])
    return path[::-1]


def by_the_path(terms: Terms, path: list[int]) -> tuple[Tensor, Tensor]:
    """The last output [V, Dv] and state [V, Dk, Dv] of a plain recurrence in float64."""
    q, k, v, g, beta = (term.double() for term in terms)
    group = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
    state = v.new_zeros(v.shape[1], k.shape[2], v.shape[2])
    for row in path:
        state = state * g[row].exp()[:, None, None]
        error = beta[row][:, None] * (v[row] - torch.einsum("hkv,hk->hv", state, k[row]))
        state = state + torch.einsum("hk,hv->hkv", k[row], error)
    return torch.einsum("hkv,hk->hv", state, q[path[-1]]), state


def a_few_rows(pass_: Pass) -> list[int]:
    """Rows inside a content and at the end of its tile, the last of contents, the middle and end of branches."""
    inside = [int(start) + depth for start, cut, _ in pass_.segments for depth in (40, 63) if start + depth < cut]
    around = [int(row) for start, cut, stop in pass_.segments for row in (cut - 1, cut + 2, stop - 1) if row >= start]
    return [*inside, *around]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_row_follows_its_own_path(shape: tuple[int, int, int, int]) -> None:
    pass_ = make_pass(1)
    terms = make_terms(pass_.rows, shape)

    out, kept = tree_delta(make_layout(pass_))(*terms)

    assert kept is None
    for row in range(0, pass_.rows, 7):
        if pass_.job[row] >= 0:
            torch.testing.assert_close(out[row].double(), by_the_path(terms, path_of(pass_, row))[0], atol=2e-5, rtol=2e-5)
        else:
            assert not out[row].any()


@pytest.mark.parametrize("decay", [0.0, -1e-3, -50.0, -1e4])
def test_the_same_key_again_and_again_loses_no_digits(decay: float) -> None:
    """As a word repeated over a whole content makes it; writing all of what is missing, whatever the decay."""
    pass_ = make_pass(21, contents=(130,), branches=3, longest=8)
    q, k, v, g, beta = make_terms(pass_.rows, SHAPES["as many"])
    terms = q, k[:1].expand_as(k), v, torch.full_like(g, decay), torch.ones_like(beta)

    out, _ = tree_delta(make_layout(pass_))(*terms)

    for row in range(3, int(pass_.segments[0, 2]), 10):
        torch.testing.assert_close(out[row].double(), by_the_path(terms, path_of(pass_, row))[0], atol=2e-5, rtol=2e-5)


def test_states_of_any_rows_are_kept_in_their_order() -> None:
    pass_ = make_pass(2)
    rows = a_few_rows(pass_)
    rows = [*rows[::-1], rows[0]]  # in no order, one of them twice
    terms = make_terms(pass_.rows, SHAPES["in groups"])

    _, kept = tree_delta(make_layout(pass_), rows)(*terms)

    assert kept is not None
    for number, row in enumerate(rows):
        expected = by_the_path(terms, path_of(pass_, row))[1]
        torch.testing.assert_close(kept[number].double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("spared", [0, 10**9])
def test_where_states_are_saved_moves_no_bit(spared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_ = make_pass(3, branches=12)
    terms = make_terms(pass_.rows, SHAPES["as many"])
    usual, _ = tree_delta(make_layout(pass_))(*terms)

    monkeypatch.setattr(walks, "SAVED", spared)
    monkeypatch.setattr(walks, "APART", 0)
    plan = RecurrencePlan.build(make_layout(pass_))
    found, _ = TorchTreeDelta(plan)(*terms)

    assert (len(plan.levels) > 1) == (spared == 0)
    assert torch.equal(found, usual)


def test_keeping_states_moves_no_bit() -> None:
    pass_ = make_pass(4)
    terms = make_terms(pass_.rows, SHAPES["as many"])
    assert torch.equal(tree_delta(make_layout(pass_), a_few_rows(pass_))(*terms)[0], tree_delta(make_layout(pass_))(*terms)[0])


def test_what_walks_pass_through_together_is_bounded() -> None:
    """A long stem under many questions is worked out once, not once for each."""
    stem = tuple(range(40))
    probe = Probe((1, 2), tuple((*stem, number, number) for number in range(30)))
    batch = lay_out([next(split(probe.job(), 200))], Sizes.up_to(256))
    plan = RecurrencePlan.build(make_layout(batch.pass_))
    assert len(plan.rows) == 40 + 30 * 2
    assert plan.states == 1 + 1


def test_paths_that_part_at_every_row_save_a_state_now_and_then() -> None:
    """Each question begins as all longer ones do."""
    probe = Probe((1, 2), tuple((*range(length), 99) for length in range(1, 101)))
    batch = lay_out([next(split(probe.job(), 300))], Sizes.up_to(512))
    plan = RecurrencePlan.build(make_layout(batch.pass_))
    assert plan.states <= 1 + 100 / walks.APART
    assert len(plan.rows) <= 200 + 100 * walks.APART


def test_every_row_after_the_cut_is_answered_for_once() -> None:
    pass_ = make_pass(5, branches=30)
    plan = RecurrencePlan.build(make_layout(pass_), [100, 200])
    answered = np.concatenate(
        [plan.rows[own:stop] for level in plan.levels for own, stop in zip(level.own, level.stop, strict=True)]
    )
    after = np.concatenate([np.arange(cut_row, stop) for _, cut_row, stop in pass_.segments])
    assert sorted(answered.tolist()) == after.tolist()


def continued(pass_: Pass, rows: list[int]) -> tuple[Pass, TreeLayout]:
    """The rows behind `rows[0]`, a job's last content row, as a job of its own on the kept state."""
    whole = make_layout(pass_)
    kept, _ = keep_paths(pass_, whole.content_index, whole.previous, None, rows)
    job = int(pass_.job[rows[0]])
    _, cut_row, stop = pass_.segments[job]
    inside = (np.arange(pass_.rows) >= cut_row) & (pass_.job == job)
    after = attrs.evolve(
        pass_,
        job=np.where(inside, 0, -1).astype(np.int32),
        parent=np.where(inside & (pass_.parent >= cut_row), pass_.parent, -1).astype(np.int32),
        end=np.where(inside, pass_.end, np.arange(1, pass_.rows + 1)).astype(np.int32),
        segments=np.array([[cut_row, cut_row, stop]], np.int32),
        cut=pass_.cut[job : job + 1],
        base=np.array([0], np.int32),
    )
    return after, TreeLayout.build(after, kept, CPU)


def test_rows_behind_a_kept_state_are_the_same_bits() -> None:
    pass_ = make_pass(6)
    _, cut_row, stop = pass_.segments[4]
    terms = make_terms(pass_.rows, SHAPES["one key head"])
    expected, kept = tree_delta(make_layout(pass_), [cut_row - 1])(*terms)

    _, layout = continued(pass_, [cut_row - 1])
    found, _ = tree_delta(layout)(*terms, kept)

    assert torch.equal(found[cut_row:stop], expected[cut_row:stop])


@pytest.mark.parametrize("norm", [None, 0.25])
def test_convolution_taps_reach_back_along_the_path(norm: float | None) -> None:
    pass_ = make_pass(7, contents=(1, 2, 5, 0))
    inputs, weight = torch.randn(pass_.rows, 40), torch.randn(40, 4)

    found = convolve(inputs, weight, PathTaps.build(make_layout(pass_), 3), None, first=8, heads=2, width=16, norm=norm)

    for row in np.flatnonzero(pass_.job >= 0):
        rows = path_of(pass_, row)[-4:]
        mixed = (inputs[rows, 8:].double() * weight[8:].double()[:, 4 - len(rows) :].T).sum(0)
        expected = torch.nn.functional.silu(mixed).view(2, 16)
        if norm is not None:
            expected = expected / expected.norm(dim=-1, keepdim=True) * norm
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=1e-4)


def test_kept_taps_stand_in_for_the_rows_before() -> None:
    pass_ = make_pass(8)
    _, cut_row, stop = pass_.segments[1]
    inputs, weight = torch.randn(pass_.rows, 32), torch.randn(32, 4)
    whole = PathTaps.build(make_layout(pass_), 3, [cut_row - 1])
    expected = convolve(inputs, weight, whole, None, first=0, heads=1, width=32)
    kept = whole.kept(inputs, None)

    _, layout = continued(pass_, [cut_row - 1])
    found = convolve(inputs, weight, PathTaps.build(layout, 3), kept, first=0, heads=1, width=32)

    assert torch.equal(found[cut_row:stop], expected[cut_row:stop])


def test_the_gated_norm_equals_that_of_transformers() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    theirs = Qwen3_5RMSNormGated(24, eps=1e-5)
    theirs.weight.data = torch.randn(24)
    x, gate = torch.randn(7, 3, 24), torch.randn(7, 72)
    expected = theirs(x, gate.view(7, 3, 24)).flatten(1)
    torch.testing.assert_close(GatedRMSNorm(theirs.weight.data, 1e-5)(x, gate), expected)
