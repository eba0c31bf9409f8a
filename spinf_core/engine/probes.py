"""Probe jobs: random contents and branches whose scores must not depend on what they share a pass with."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from spinf_core.compiler.jobs import Job, Part, split
from spinf_core.compiler.trie import build_trie
from spinf_core.engine.packing import lay_out
from spinf_core.engine.reading import HEAD_BLOCK, padded_block
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import Model


@attrs.frozen(eq=False)
class Probe:
    """A content and branches; every branch is read at its last token.

    Attributes:
        content: token ids. branches: token ids of each, none empty.
    """

    content: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]

    def job(self) -> Job:
        """As the engine runs it; pair n reads branch n, column 0."""
        trie = build_trie(self.branches)
        numbers = np.arange(len(self.branches), dtype=np.int32)
        return Job(
            content=np.array(self.content, np.int32),
            token=trie.token,
            parent=trie.parent,
            depth=trie.depth,
            end=trie.end,
            pair_node=trie.last(numbers),
            pair_column=np.zeros(len(numbers), np.int32),
            groups=(),
            questions=len(numbers),
        )

    def only(self, branches: Sequence[int]) -> Probe:
        """The same content with some of its branches."""
        return Probe(self.content, tuple(self.branches[number] for number in branches))


def random_probe(generator: np.random.Generator, vocab: int, content: int, branches: int, longest: int) -> Probe:
    """Branches of 1…`longest` tokens; half of them share 1…k tokens with an earlier one."""
    made: list[tuple[int, ...]] = []
    for number in range(branches):
        length = int(generator.integers(1, longest + 1))
        tokens = generator.integers(0, vocab, length).tolist()
        if number % 2:
            other = made[int(generator.integers(0, number))]
            shared = int(generator.integers(1, len(other) + 1))
            tokens = [*other[:shared], *tokens][: max(length, shared)]
        made.append(tuple(tokens))
    return Probe(tuple(generator.integers(0, vocab, content).tolist()), tuple(made))


def run_parts(model: Model, parts: Sequence[Part], sizes: Sizes) -> list[Tensor]:
    """Hidden rows of each part's pairs [p, hidden], all parts in one pass."""
    batch = lay_out(parts, sizes, model.axes)
    hidden, _ = model.forward(batch.pass_)
    return [hidden[torch.as_tensor(batch.read_rows(n), dtype=torch.int64)] for n in range(len(parts))]


def run_probes(model: Model, probes: Sequence[Probe], sizes: Sizes, budget: int | None = None) -> list[Tensor]:
    """Hidden rows [branches, hidden] of each probe: packed into one pass, or each split into passes of `budget` rows."""
    jobs = [probe.job() for probe in probes]
    if budget is None:
        whole = [part for job in jobs for part in split(job, max(job.rows, 1))]
        return run_parts(model, whole, sizes)
    results = []
    for job in jobs:
        rows = torch.empty(job.questions, model.hidden_size, dtype=model.dtype, device=model.device)
        for part in split(job, budget):
            rows[torch.as_tensor(part.pairs, dtype=torch.int64)] = run_parts(model, [part], sizes)[0]
        results.append(rows)
    return results


def read_rows(model: Model, hidden: Tensor) -> Tensor:
    """[rows, 2]: the first logit and the normaliser of each row, in blocks as the engine reads them."""
    results = []
    for first in range(0, len(hidden), HEAD_BLOCK):
        block = hidden[first : first + HEAD_BLOCK]
        at = torch.arange(len(block), device=hidden.device)
        logits, normaliser = model.read(padded_block(block), at, torch.zeros_like(at))
        results.append(torch.stack((logits, normaliser[at]), dim=1))
    return torch.cat(results)
