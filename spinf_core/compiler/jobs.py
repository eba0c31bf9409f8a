"""Jobs: one content with the trie of its questions, and what is read where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from spinf_core.compiler.options import OptionPlan
from spinf_core.compiler.trie import IntArray, build_trie


@attrs.frozen(eq=False)
class QuestionGroup:
    """Questions of one job that share an option plan; their values are read as one block of columns.

    Attributes:
        plan: of Q questions.
        questions: [Q] their numbers in the job.
        first: the first of their Q · plan.width pairs in the job, question by question.
    """

    plan: OptionPlan
    questions: IntArray
    first: int


@attrs.frozen(eq=False)
class Job:
    """One content and what follows it.

    Attributes:
        content: [C] token ids up to the cut, BOS included.
        token, parent, depth, end: [M] the trie after the cut, in pre-order; depth counts from the cut, parent −1 hangs
            on the content.
        pair_node: [P] the node at which each value is read, −1: the content's last row.
        pair_column: [P] the column of the vocabulary.
        groups: the questions whose values the pairs are.
        questions: how many there are.
    """

    content: IntArray
    token: IntArray
    parent: IntArray
    depth: IntArray
    end: IntArray
    pair_node: IntArray
    pair_column: IntArray
    groups: tuple[QuestionGroup, ...]
    questions: int

    @property
    def rows(self) -> int:
        """Rows of a pass that the job takes."""
        return len(self.content) + len(self.token)

    def behind(self, content: Sequence[int], stem: Sequence[int]) -> Job:
        """The job of the same branches with other tokens before them: a content, then a stem that they all share.

        Its arrays are those of `build_job`, which takes much longer.
        """
        count = len(stem)
        along = np.arange(count, dtype=np.int32)
        return attrs.evolve(
            self,
            content=np.asarray(content, np.int32),
            token=np.concatenate((np.asarray(stem, np.int32), self.token)),
            parent=np.concatenate((along - 1, self.parent + count)),
            depth=np.concatenate((along, self.depth + count)),
            end=np.concatenate((np.full(count, count + len(self.token), np.int32), self.end + count)),
            pair_node=self.pair_node + count,  # −1, the row before the branches, is the stem's last
        )


def build_job(content: Sequence[int], branches: Sequence[Sequence[int]], plans: Sequence[OptionPlan]) -> Job:
    """The job of a content, its branches and the plan of each branch's options.

    Lead-ins of options of several tokens become branches of their own behind their question's.
    """
    sequences = list(branches)
    by_plan: dict[int, tuple[OptionPlan, list[int]]] = {}
    for number, plan in enumerate(plans):
        by_plan.setdefault(id(plan), (plan, []))[1].append(number)
    lead_ins: dict[int, list[range]] = {}
    for plan, questions in by_plan.values():
        for _, tokens in plan.chains:
            lead_ins.setdefault(id(plan), []).append(range(len(sequences), len(sequences) + len(questions)))
            sequences.extend([*branches[number], *tokens[:-1]] for number in questions)
    trie = build_trie(sequences)

    groups, nodes, columns = [], [], []
    first = 0
    for plan, numbers in by_plan.values():
        mine = np.array(numbers, np.int32)
        last = trie.last(mine)
        parts = [np.repeat(last[:, None], len(plan.single_column), axis=1)]
        for (_, tokens), sequence in zip(plan.chains, lead_ins.get(id(plan), ()), strict=True):
            positions = trie.length[mine][:, None] + np.arange(len(tokens) - 1)
            parts += [last[:, None], trie.node_at[np.array(sequence)[:, None], positions]]
        nodes.append(np.concatenate(parts, axis=1).ravel())
        columns.append(np.tile(plan.columns, len(numbers)))
        groups.append(QuestionGroup(plan, mine, first))
        first += len(numbers) * plan.width
    return Job(
        content=np.asarray(content, np.int32),
        token=trie.token,
        parent=trie.parent,
        depth=trie.depth,
        end=trie.end,
        pair_node=np.concatenate([*nodes, np.empty(0, np.int32)]).astype(np.int32),
        pair_column=np.concatenate([*columns, np.empty(0, np.int32)]).astype(np.int32),
        groups=tuple(groups),
        questions=len(plans),
    )


@attrs.frozen(eq=False)
class Part:
    """A job, or as many of its branches as fit beside its content, as a pass takes it.

    Attributes:
        job: whose.
        first, stop: the nodes of the job that are run for their reads.
        nodes: [m] those and the stem that leads to them, in pre-order.
        parent, end: [m] within the part.
        pairs: [p] the job's pairs that are read in this part.
        pair_row: [p] the row of the part at which each is read; row C is the first node.
    """

    job: Job
    first: int
    stop: int
    nodes: IntArray
    parent: IntArray
    end: IntArray
    pairs: IntArray
    pair_row: IntArray

    @property
    def rows(self) -> int:
        """Rows of a pass that the part takes."""
        return len(self.job.content) + len(self.nodes)

    def halves(self) -> tuple[Part, ...]:
        """The part as two, each with half of the nodes; itself where there are not two."""
        middle = (self.first + self.stop) // 2
        if middle == self.first:
            return (self,)
        return _part(self.job, self.first, middle), _part(self.job, middle, self.stop)


def split(job: Job, most_rows: int) -> Iterator[Part]:
    """The job whole if it takes at most `most_rows`, else in parts that repeat the content and shared stems.

    Raises:
        ValueError: a single path does not fit.
    """
    count = len(job.token)
    first = 0
    while True:
        stem = len(_ancestors(job, first))
        stop = min(count, first + most_rows - len(job.content) - stem)
        if stop <= first < count:
            raise ValueError(f"a path of {len(job.content) + stem + 1} rows does not fit into {most_rows}")
        yield _part(job, first, stop)
        first = stop
        if stop == count:
            return


def _ancestors(job: Job, node: int) -> IntArray:
    found: list[int] = []
    at = int(job.parent[node]) if node else -1
    while at >= 0:
        found.append(at)
        at = int(job.parent[at])
    return np.array(found[::-1], np.int32)


def _part(job: Job, first: int, stop: int) -> Part:
    if (first, stop) == (0, len(job.token)):  # nothing is left out, so nothing is numbered anew
        nodes, pairs = np.arange(stop, dtype=np.int32), np.arange(len(job.pair_node), dtype=np.int32)
        return Part(job, first, stop, nodes, job.parent, job.end, pairs, job.pair_node + len(job.content))
    stem = _ancestors(job, first)
    nodes = np.concatenate((stem, np.arange(first, stop, dtype=np.int32)))
    place = np.full(len(job.token) + 1, -1, np.int32)  # the last entry answers for parent −1
    place[nodes] = np.arange(len(nodes))
    parent = place[job.parent[nodes]]
    end = np.minimum(job.end[nodes], stop) - first + len(stem)
    mine = (job.pair_node >= first) & (job.pair_node < stop)
    if first == 0:
        mine |= job.pair_node < 0
    pairs = np.flatnonzero(mine).astype(np.int32)
    pair_row = place[job.pair_node[pairs]] + len(job.content)  # −1, the content's last row, falls just before the first node
    return Part(job, first, stop, nodes, parent, end.astype(np.int32), pairs, pair_row.astype(np.int32))
