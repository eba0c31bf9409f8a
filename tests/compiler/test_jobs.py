"""Jobs and how they split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_core.compiler.jobs import Job, build_job, split
from spinf_core.compiler.options import OptionPlan

TOKENS = st.lists(st.integers(0, 3), max_size=5).map(tuple)


def plan(*forms: tuple[int, ...]) -> OptionPlan:
    """One option for each form."""
    singles = [(form[0], number) for number, form in enumerate(forms) if len(form) == 1]
    return OptionPlan(
        options=tuple(map(str, forms)),
        single_column=np.array([column for column, _ in singles], np.int32),
        single_option=np.array([number for _, number in singles], np.int32),
        chains=tuple((number, form) for number, form in enumerate(forms) if len(form) > 1),
        tokens_after_first=sum(len(form) - 1 for form in forms),
    )


def path(job: Job, node: int) -> tuple[int, ...]:
    """The tokens after the cut up to a node."""
    tokens: list[int] = []
    while node >= 0:
        tokens.append(int(job.token[node]))
        node = int(job.parent[node])
    return tuple(reversed(tokens))


PLANS = st.lists(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3, unique=True).map(
        lambda forms: plan(*forms)
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, list[tuple[int, ...]], list[OptionPlan]]:
    branches = draw(st.lists(TOKENS, min_size=1, max_size=8))
    shared = draw(PLANS)
    plans = [draw(st.sampled_from(shared)) for _ in branches]
    content = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    return build_job(content, branches, plans), branches, plans


@given(jobs())
def test_every_question_reads_each_form_by_the_chain_rule(made: tuple[Job, list[tuple[int, ...]], list[OptionPlan]]) -> None:
    job, branches, plans = made
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for group in job.groups:
        for row, question in enumerate(group.questions.tolist()):
            first = group.first + row * group.plan.width
            pairs = range(first, first + group.plan.width)
            found[question] = [(path(job, int(job.pair_node[pair])), int(job.pair_column[pair])) for pair in pairs]
            assert group.plan is plans[question]
    for question, (branch, options) in enumerate(zip(branches, plans, strict=True)):
        expected = [(branch, column) for column in options.single_column.tolist()]
        for _, tokens in options.chains:
            expected += [(branch + tokens[:step], token) for step, token in enumerate(tokens)]
        assert found.pop(question) == expected
    assert not found


@given(jobs(), st.integers(0, 12))
def test_parts_hold_every_node_and_every_read_once(
    made: tuple[Job, list[tuple[int, ...]], list[OptionPlan]], spare: int
) -> None:
    job = made[0]
    limit = len(job.content) + int(job.depth.max(initial=-1)) + 1 + spare
    parts = list(split(job, limit))

    assert all(part.rows <= limit for part in parts)
    assert sorted(np.concatenate([part.pairs for part in parts]).tolist()) == list(range(len(job.pair_node)))
    first_seen: list[int] = []
    for part in parts:
        first_seen += [node for node in part.nodes.tolist() if node not in first_seen]
    assert first_seen == list(range(len(job.token)))


@given(jobs(), st.integers(0, 12))
def test_a_part_is_a_trie_of_whole_paths(made: tuple[Job, list[tuple[int, ...]], list[OptionPlan]], spare: int) -> None:
    job = made[0]
    content = len(job.content)
    for part in split(job, content + int(job.depth.max(initial=-1)) + 1 + spare):
        for place, node in enumerate(part.nodes.tolist()):
            parent = int(part.parent[place])
            assert parent < place
            assert (part.nodes[parent] if parent >= 0 else -1) == job.parent[node]
            below = [other for other in range(len(part.nodes)) if _is_below(part.parent, other, place)]
            assert below == list(range(place, int(part.end[place])))
        rows = part.pair_row - content
        assert [part.nodes[row] if row >= 0 else -1 for row in rows] == job.pair_node[part.pairs].tolist()


def _is_below(parent: np.ndarray, node: int, ancestor: int) -> bool:
    while node > ancestor:
        node = int(parent[node])
    return node == ancestor


def test_a_job_that_fits_is_one_part() -> None:
    job = build_job([1, 2], [(3,), (3, 4)], [plan((5,))] * 2)
    (part,) = split(job, job.rows)
    assert part.rows == job.rows == 4


def test_a_path_that_does_not_fit_is_an_error() -> None:
    job = build_job([1, 2], [(3, 4, 5)], [plan((6,))])
    with pytest.raises(ValueError, match="does not fit into 4"):
        list(split(job, 4))


@given(jobs(), TOKENS, TOKENS)
def test_branches_behind_a_stem_are_those_of_a_job_built_with_it(
    made: tuple[Job, list[tuple[int, ...]], list[OptionPlan]], content: tuple[int, ...], stem: tuple[int, ...]
) -> None:
    job, branches, plans = made
    found, expected = job.behind(content, stem), build_job(content, [stem + branch for branch in branches], plans)
    for name in ("content", "token", "parent", "depth", "end", "pair_node", "pair_column"):
        array = getattr(found, name)
        np.testing.assert_array_equal(array, getattr(expected, name), strict=True)
    assert [(group.plan, group.first) for group in found.groups] == [(group.plan, group.first) for group in expected.groups]


@given(jobs())
def test_a_job_that_fits_is_one_part_with_all_of_its_nodes_and_pairs(
    made: tuple[Job, list[tuple[int, ...]], list[OptionPlan]],
) -> None:
    job, _, _ = made
    (part,) = split(job, job.rows)
    assert part.nodes.tolist() == list(range(len(job.token)))
    assert part.parent.tolist() == job.parent.tolist()
    assert part.end.tolist() == job.end.tolist()
    assert part.pairs.tolist() == list(range(len(job.pair_node)))
    below = [len(job.content) + node for node in job.pair_node.tolist()]  # −1 is the content's last row
    assert part.pair_row.tolist() == below
