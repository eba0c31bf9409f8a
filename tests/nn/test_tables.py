"""The tile tables against the definition of what a row sees: every ancestor once, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_core.compiler.jobs import Job, split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.kernels.tables import LEAST_ROOM, STEP_KEYS, tile_arrays, with_room
from spinf_core.nn.layout import PATH_TILE, TreeLayout
from spinf_core.stack import CONTENT_TILE, IntArray, Pass

SIZES = Sizes.up_to(256, 16384)


def job(content: int, *branches: Sequence[int]) -> Job:
    return Probe((7,) * content, tuple(map(tuple, branches))).job()


def layout_of(*jobs: Job) -> TreeLayout:
    pass_ = lay_out([next(split(each, max(each.rows, 1))) for each in jobs], SIZES).pass_
    return TreeLayout.build(pass_, None, torch.device("cpu"))


def ancestors(pass_: Pass, row: int) -> list[int]:
    """By the definition of `Pass`: the row itself, and what `parent` leads to."""
    path = [row]
    while pass_.parent[path[-1]] >= 0:
        path.append(int(pass_.parent[path[-1]]))
    return path[::-1]


def seen(layout: TreeLayout, arrays: dict[str, IntArray]) -> dict[int, list[int]]:
    """What the kernel makes of the tables: the keys of every row in the order in which it meets them."""
    pass_, found = layout.pass_, {}
    for first, rows, key, keys, first_seen, step, steps in arrays["tiles"].T.tolist():
        assert rows <= CONTENT_TILE
        for lane, row in enumerate(range(first, first + rows)):
            assert row not in found  # one tile answers for a row
            met = list(range(key, key + min(keys, first_seen + lane)))
            after = int(arrays["depth"][row]) - keys
            for number in range(step, step + steps):
                chosen = np.flatnonzero(
                    (arrays["step_paths"][number] == arrays["row_path"][row]) & (arrays["step_keys"][number] >= 0)
                )
                depths = arrays["stretch"][number] * PATH_TILE + chosen % PATH_TILE
                met += arrays["step_keys"][number][chosen[depths <= after]].tolist()
            found[row] = met
    assert sorted(found) == list(range(pass_.rows))
    return found


def check(*jobs: Job) -> None:
    layout = layout_of(*jobs)
    arrays = tile_arrays(layout)
    pass_ = layout.pass_
    assert (np.diff(arrays["tiles"][0]) > 0).all()
    for row, met in seen(layout, arrays).items():
        assert met == ([] if pass_.job[row] < 0 else ancestors(pass_, row)), row


branch = st.lists(st.integers(0, 2), min_size=1, max_size=40)
jobs = st.builds(
    lambda content, branches: job(content, *branches),
    st.one_of(st.integers(0, 5), st.sampled_from([63, 64, 65, 127, 128, 129, 192])),
    st.lists(branch, max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=5))
def test_a_row_sees_its_ancestors_once_in_order_and_nothing_else(jobs: list[Job]) -> None:
    check(*jobs)


@pytest.mark.parametrize(
    "jobs",
    [
        [job(0)],
        [job(0), job(3, [1]), job(0), job(0, [1, 2]), job(0)],
        [job(64), job(128), job(1)],
        [job(64, [1]), job(128, [1, 2], [1, 3]), job(0, [5])],
        [job(3, range(700))],
        [job(0, range(513), [*range(300), 9000, 9001])],
        [job(100, *([number, 1, 2] for number in range(2000)))],
        [job(65, *([0] * (number % 50) + [1 + number] for number in range(200)))],
    ],
    ids=[
        "a job of nothing",
        "jobs of nothing between others",
        "contents without branches",
        "contents of whole tiles",
        "a long branch",
        "long branches without a content",
        "two thousand branches",
        "branches that leave a stem one by one",
    ],
)
def test_so_it_is_in_corner_cases(jobs: list[Job]) -> None:
    check(*jobs)


@pytest.mark.parametrize(
    ("branches", "rows"),
    [
        ([[number] * 7 for number in range(13)], [49, 42]),
        ([range(100)], [48, 52]),
        ([[number] * 8 for number in range(15)] + [[99] * 8], [64, 64]),
        ([*([number] * 5 for number in range(25)), [99] * 3], [64, 64]),
    ],
    ids=["between branches", "between stretches of one", "full tiles", "full tiles, within a branch"],
)
def test_rows_after_a_cut_are_parted_into_tiles_much_alike(branches: list[Sequence[int]], rows: list[int]) -> None:
    layout = layout_of(job(3, *branches))
    tiles = tile_arrays(layout)["tiles"]
    (_, cut, stop) = layout.pass_.segments[0]
    assert tiles[1, (tiles[0] >= cut) & (tiles[0] < stop)].tolist() == rows


@settings(max_examples=30, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=4))
def test_passes_with_room_are_of_few_kinds_and_mean_the_same(jobs: list[Job]) -> None:
    layout = layout_of(*jobs)
    arrays = tile_arrays(layout)
    roomy = with_room(arrays)
    for name, axis in (("tiles", 1), ("step_keys", 0), ("step_paths", 0), ("stretch", 0)):
        count = roomy[name].shape[axis]
        assert count >= LEAST_ROOM
        assert count & (count - 1) == 0
    assert roomy["step_keys"].shape[1] == STEP_KEYS
    assert seen(layout, roomy) == seen(layout, arrays)
