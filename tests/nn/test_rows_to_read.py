"""The rows for which alone a last layer ends."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from spinf_core.engine.loading import STEPS
from spinf_core.engine.packing import lay_out
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.layout import rows_to_read
from spinf_core.stack import Pass

EMPTY = lay_out([], Sizes((16,))).pass_


def pass_with(rows: int, reads: int) -> Pass:
    return attrs.evolve(EMPTY, ids=np.zeros(rows, np.int32), reads=np.arange(5, 5 + reads, dtype=np.int32))


@pytest.mark.parametrize("device", sorted(STEPS))
@pytest.mark.parametrize("budget", [64, 512, 2048, 16_384])
def test_their_number_has_been_tried_by_the_self_test(device: str, budget: int) -> None:
    listed = Sizes.up_to(budget, 32_768, STEPS[device]).listed
    for reads in range(1, 20_000, 37):
        found = rows_to_read(pass_with(32_768, reads))
        assert found is not None
        assert len(found) in listed


@pytest.mark.parametrize("reads", [1, 127, 128, 129, 1000, 3000])
def test_the_reads_come_first_and_what_fills_up_is_read_too(reads: int) -> None:
    pass_ = pass_with(32_768, reads)
    found = rows_to_read(pass_)
    assert found is not None
    assert np.array_equal(found[:reads], pass_.reads)
    assert set(found[reads:]) <= set(pass_.reads)


@pytest.mark.parametrize(("rows", "reads"), [(128, 1), (256, 0), (1024, 1000)])
def test_none_where_that_spares_nothing(rows: int, reads: int) -> None:
    assert rows_to_read(pass_with(rows, reads)) is None
