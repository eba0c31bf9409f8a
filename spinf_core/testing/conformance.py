"""The conformance suite for model stacks.

A plugin's tests subclass `StackConformance` and give it a model and an oracle:

    class TestMyStack(StackConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def model(cls):
            return load_a_tiny_random_checkpoint()

        @pytest.fixture(scope="class")
        @classmethod
        def oracle(cls):
            return lambda ids: log_probabilities_of_one_plain_sequence(ids)  # [len(ids), V]

Each check is also a function that raises `AssertionError` saying what went wrong, for use outside pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice, pairwise

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe, random_probe, run_probes
from spinf_core.engine.selftest import compare_packed, compare_split, self_test
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import CONTENT_TILE, Model, Pass

Oracle = Callable[[Sequence[int]], Tensor]

CONTENT_LENGTHS = (1, 2, 3, 4, 31, CONTENT_TILE - 1, CONTENT_TILE, CONTENT_TILE + 1, 2 * CONTENT_TILE + 1)
SIZES = Sizes.up_to(4096)
MOST_PROBLEMS = 8  # that a failed check lists


def probes(model: Model, seed: int = 0, longest: int = 20) -> list[Probe]:
    """Contents on both sides of every tile edge, each with branches that share 1…k tokens."""
    generator = np.random.default_rng(seed)
    made = [random_probe(generator, model.vocab_size, length, 6, longest) for length in CONTENT_LENGTHS]
    return [
        *made,
        random_probe(generator, model.vocab_size, 5, 70, 4),
        random_probe(generator, model.vocab_size, 0, 6, 40),
    ]


def check_oracle(model: Model, oracle: Oracle, tolerance: float) -> None:
    """Every branch's distribution equals the oracle's for its full prompt, in one pass of many jobs."""
    some = probes(model)
    for probe, hidden in zip(some, run_probes(model, some, SIZES), strict=True):
        found = log_probabilities(model, hidden)
        for number, branch in enumerate(probe.branches):
            expected = oracle([*probe.content, *branch])[-1].float()
            likely = expected > expected.max() - 20
            error = (found[number] - expected)[likely].abs().max().item()
            assert error <= tolerance, (
                f"branch {number} of {len(branch)} tokens behind a content of {len(probe.content)}: a log-probability is off "
                f"by {error:.2e}, more than {tolerance:.0e}"
            )


def log_probabilities(model: Model, hidden: Tensor) -> Tensor:
    """[rows, V] float32, read column by column as the engine would."""
    columns = torch.arange(model.vocab_size, device=hidden.device)
    padded = hidden.new_zeros(SIZES.fit(len(hidden)), hidden.shape[1])
    padded[: len(hidden)] = hidden
    rows = torch.arange(len(hidden), device=hidden.device)
    logits, normaliser = model.read(padded, rows.repeat_interleave(len(columns)), columns.repeat(len(hidden)))
    return (logits.view(len(hidden), -1) - normaliser[: len(hidden), None]).cpu()


def check_invariance(model: Model) -> None:
    """No hidden bit depends on packing, order, siblings or splitting; no operation on the number of rows."""
    some = probes(model, seed=1)
    alone = [run_probes(model, [probe], SIZES)[0] for probe in some]
    found = chain(
        self_test(model, Sizes.up_to(512)).failures,
        compare_packed(model, some, alone, SIZES),
        *(compare_split(model, number, *pair, SIZES) for number, pair in enumerate(zip(some, alone, strict=True))),
    )
    problems = list(islice(found, MOST_PROBLEMS))
    assert not problems, "; ".join(problems)


def check_past(model: Model) -> None:
    """Branches continued from kept states, and contents continued where a tile ends, equal the unbroken run in bits."""
    generator = np.random.default_rng(2)
    for length in (1, CONTENT_TILE, CONTENT_TILE + 3, 2 * CONTENT_TILE + 1):
        probe = random_probe(generator, model.vocab_size, length, 5, 38)
        unbroken = run_probes(model, [probe], SIZES)[0]
        _check_branches_from_cut(model, probe, unbroken)
        _check_branches_from_within(model, probe, unbroken)
        if length > CONTENT_TILE:
            _check_content_from_tile(model, probe, unbroken)


def _layout(model: Model, probe: Probe) -> Pass:
    job = probe.job()
    return lay_out(list(split(job, max(job.rows, 1))), SIZES, model.axes).pass_


def _check_branches_from_cut(model: Model, probe: Probe, unbroken: Tensor) -> None:
    """Content first, its last row kept; then every branch in a pass of its own from a fork of that state."""
    content = _layout(model, Probe(probe.content, (probe.branches[0],)))
    last = len(probe.content) - 1
    _, state = model.forward(content, keep=[last])
    assert state is not None
    assert state.rows == 1, f"a state of one kept row says that it has {state.rows}"
    assert state.bytes > 0, "a state says that it holds no memory"
    for number, branch in enumerate(probe.branches):
        hidden, _ = model.forward(_continued(model, branch, len(probe.content), len(probe.content)), past=state)
        assert torch.equal(hidden[-1], unbroken[number]), f"branch {number} continued from the cut differs in bits"
    forks = state.fork([0, 0])
    merged = _together(model, [_continued(model, branch, last + 1, last + 1) for branch in probe.branches[:2]], bases=[1, 0])
    hidden, _ = model.forward(merged, past=forks)
    assert torch.equal(hidden, unbroken[:2]), "branches continued together from a forked state differ in bits"
    forks.free()


def _check_branches_from_within(model: Model, probe: Probe, unbroken: Tensor) -> None:
    """Each branch broken after half of its tokens, the states of all kept in one pass; then a third step from the second."""
    cut = len(probe.content)
    halves = [max(1, len(branch) // 2) for branch in probe.branches]
    heads = Probe(probe.content, tuple(branch[:half] for branch, half in zip(probe.branches, halves, strict=True)))
    job = heads.job()
    pass_ = lay_out(list(split(job, job.rows)), SIZES, model.axes).pass_
    _, state = model.forward(pass_, keep=(job.pair_node + cut).tolist())
    assert state is not None
    for number, (branch, half) in enumerate(zip(probe.branches, halves, strict=True)):
        rest, now = branch[half:], state.fork([number])
        depth = cut + half
        hidden = None
        while rest:  # a few tokens at a time, each from the state before
            step = rest[:3]
            hidden, kept = model.forward(_continued(model, step, cut, depth), past=now, keep=[len(step) - 1])
            assert kept is not None
            now, rest, depth = kept, rest[3:], depth + len(step)
        if hidden is not None:
            assert torch.equal(hidden[-1], unbroken[number]), f"branch {number} continued from its middle differs in bits"


def _check_content_from_tile(model: Model, probe: Probe, unbroken: Tensor) -> None:
    first = _layout(model, Probe(probe.content[:CONTENT_TILE], (probe.branches[0],)))
    # The state is kept inside a content: the pass says that the content goes on.
    first = attrs.evolve(first, cut=np.array([len(probe.content)], np.int32), segments=np.array([[0, 64, 64]], np.int32))
    first = attrs.evolve(first, job=np.where(np.arange(first.rows) < CONTENT_TILE, 0, -1).astype(np.int32))
    first = attrs.evolve(first, reads=np.array([CONTENT_TILE - 1], np.int32))
    _, state = model.forward(first, keep=[CONTENT_TILE - 1])
    assert state is not None
    rest = _layout(model, Probe(probe.content[CONTENT_TILE:], probe.branches))
    rest = attrs.evolve(
        rest,
        depth=np.where(rest.job >= 0, rest.depth + CONTENT_TILE, rest.depth).astype(np.int32),
        positions=rest.positions + CONTENT_TILE,
        cut=rest.cut + CONTENT_TILE,
        base=np.array([0], np.int32),
    )
    hidden, _ = model.forward(rest, past=state)
    job = Probe(probe.content[CONTENT_TILE:], probe.branches).job()
    rows = np.searchsorted(rest.reads, job.pair_node + len(job.content))
    assert torch.equal(hidden[torch.as_tensor(rows)], unbroken), "a content continued at the end of a tile differs in bits"


def _continued(model: Model, tokens: Sequence[int], cut: int, depth: int) -> Pass:
    """One path of tokens after the cut, from `depth` on, that continues row 0 of a past; its last row is read."""
    pass_ = _layout(model, Probe((), (tuple(tokens),)))
    mine = pass_.job >= 0
    moved = np.where(mine, pass_.depth + depth, pass_.depth).astype(np.int32)
    positions = np.repeat(moved[None], model.axes, axis=0)
    return attrs.evolve(pass_, depth=moved, positions=positions, cut=np.array([cut], np.int32), base=np.array([0], np.int32))


def _together(model: Model, passes: Sequence[Pass], bases: Sequence[int]) -> Pass:
    """Passes of one path each, as the jobs of one pass without padding between them."""
    spans = [int((pass_.job >= 0).sum()) for pass_ in passes]
    starts = np.cumsum([0, *spans])
    rows = SIZES.fit(int(starts[-1]))
    merged = attrs.evolve(
        _layout(model, Probe((), ((0,) * rows,))),
        job=np.full(rows, -1, np.int32),
        parent=np.full(rows, -1, np.int32),
        end=np.arange(1, rows + 1, dtype=np.int32),
        segments=np.array([(start, start, stop) for start, stop in pairwise(starts.tolist())], np.int32),
        cut=np.concatenate([pass_.cut for pass_ in passes]),
        base=np.array(bases, np.int32),
        reads=(starts[1:] - 1).astype(np.int32),
    )
    for number, (pass_, span, start) in enumerate(zip(passes, spans, starts, strict=False)):
        at = slice(start, start + span)
        merged.ids[at], merged.depth[at] = pass_.ids[:span], pass_.depth[:span]
        merged.job[at], merged.end[at] = number, pass_.end[:span] + start
        merged.parent[at] = np.where(pass_.parent[:span] >= 0, pass_.parent[:span] + start, -1)
        merged.positions[:, at] = pass_.positions[:, :span]
    return merged


def check_odd_passes(model: Model) -> None:
    """Passes at the edges: nothing read, one row, only padding beside it, a job that ends where another begins."""
    generator = np.random.default_rng(3)
    tokens = tuple(generator.integers(0, model.vocab_size, 5).tolist())
    pass_ = _layout(model, Probe(tokens[:1], (tokens[1:2],)))
    hidden, state = model.forward(attrs.evolve(pass_, reads=np.empty(0, np.int32)))
    assert hidden.shape == (0, model.hidden_size), f"a pass without reads gave hidden rows of shape {tuple(hidden.shape)}"
    assert state is None, "a pass that keeps nothing gave a state"
    (lonely,) = run_probes(model, [Probe((), (tokens[:1],))], SIZES)
    assert torch.isfinite(lonely).all(), "a single row without a content is not finite"
    both = run_probes(model, [Probe((), (tokens[:1],)), Probe(tokens, (tokens,)), Probe((), (tokens[:1],))], SIZES)
    assert torch.equal(both[0], lonely), "a job of one row changes beside another job"
    assert torch.equal(both[2], lonely), "equal jobs in one pass differ"


def check_contract(model: Model) -> None:
    """The attributes that the engine relies on."""
    assert model.capabilities <= {"score", "extract", "generate"}, f"unknown capabilities {sorted(model.capabilities)}"
    assert model.media <= {"image", "audio", "video"}, f"unknown media {sorted(model.media)}"
    assert model.axes in (1, 3), f"{model.axes} rotary axes; 1 or 3 are known"
    assert model.tokenizer.vocab_size <= model.vocab_size, "the tokenizer knows tokens that the head does not read"
    shapes = [operation.width for operation in model.operations()]
    assert shapes, "no operations for the self-test"


class StackConformance:
    """Subclass it in a plugin's tests; see the module's docstring.

    Attributes:
        tolerance: largest error in log-probability against the oracle.
    """

    tolerance = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Model:
        """The loaded model."""
        raise TypeError(f"{cls.__name__} must define the fixture `model`")

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls) -> Oracle:
        """Log-probabilities [len(ids), V] of one plain sequence, from another implementation."""
        raise TypeError(f"{cls.__name__} must define the fixture `oracle`")

    def test_contract(self, model: Model) -> None:
        """See `check_contract`."""
        check_contract(model)

    def test_equals_the_oracle(self, model: Model, oracle: Oracle) -> None:
        """See `check_oracle`."""
        check_oracle(model, oracle, self.tolerance)

    def test_scores_do_not_depend_on_the_pass(self, model: Model) -> None:
        """See `check_invariance`."""
        check_invariance(model)

    def test_continues_from_kept_states(self, model: Model) -> None:
        """See `check_past`."""
        check_past(model)

    def test_odd_passes(self, model: Model) -> None:
        """See `check_odd_passes`."""
        check_odd_passes(model)


__all__ = [
    "StackConformance",
    "check_contract",
    "check_invariance",
    "check_odd_passes",
    "check_oracle",
    "check_past",
]
