"""The Triton kernel in the interpreter, against the CPU's own attention."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import random_probe
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import SetupError
from spinf_core.nn.cpu_attention import TiledTreeAttention
from spinf_core.nn.layout import PATH_TILE, UNUSED, KeptPaths, TreeLayout
from spinf_core.nn.linear import InputFormat
from spinf_core.nn.state import keep_paths
from spinf_core.nn.transfer import to_device
from spinf_core.stack import CONTENT_TILE

pytest.importorskip("triton", reason="triton has no wheel for this platform")

import triton

from spinf_core.nn.kernels import tree_attention
from spinf_core.nn.kernels.shapes import tile_shape
from spinf_core.nn.kernels.tables import STEP_KEYS, TileTables, tile_arrays, with_room
from spinf_core.nn.kernels.tree_attention import TritonTreeAttention

# What a program may hold on an H200, an A100, and an L40S or a consumer's card.
ROOMS = [232_448, 166_912, 101_376]

SHAPES = [(4, 2, 64), (3, 1, 32), (2, 2, 128), (16, 1, 64), (4, 4, 80)]


def make_layout(seed: int, contents: tuple[int, ...]) -> TreeLayout:
    generator = np.random.default_rng(seed)
    jobs = [random_probe(generator, 50, content, 5, 20).job() for content in contents]
    batch = lay_out([next(split(job, job.rows)) for job in jobs], Sizes.up_to(1024))
    return TreeLayout.build(batch.pass_, None, torch.device("cpu"))


def inputs(rows: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, count, width, generator=generator).to(dtype) for count in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("window", [None, 9, 70])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_equals_the_cpu_in_float32(heads: int, kv_heads: int, width: int, window: int | None) -> None:
    layout = make_layout(heads, (1, 63, 64, 65, 0, 100))
    q, k, v = inputs(layout.rows, heads, kv_heads, width, torch.float32)
    expected = TiledTreeAttention(layout)(q, k, v, scale=0.3, window=window)
    found = TritonTreeAttention.of(layout)(q, k, v, scale=0.3, window=window)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "shares"), [(4, 2, 64, 1), (2, 1, 512, 2), (2, 1, 400, 2)])
def test_equals_the_cpu_in_bfloat16(heads: int, kv_heads: int, width: int, shares: int, window: int | None) -> None:
    assert tile_shape(heads // kv_heads, width, torch.bfloat16, ROOMS[0]).shares == shares
    layout = make_layout(1, (70, 3))
    q, k, v = inputs(layout.rows, heads, kv_heads, width, torch.bfloat16)
    scale = width**-0.5
    expected = TiledTreeAttention(layout)(q.float(), k.float(), v.float(), scale=scale, window=window)
    found = TritonTreeAttention.of(layout)(q, k, v, scale=scale, window=window)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


def test_continues_a_past() -> None:
    """A branch behind kept rows equals itself in one pass."""
    whole = make_layout(2, (70,))
    pass_ = whole.pass_
    _, cut_row, stop = pass_.segments[0]
    last = cut_row - 1
    kept, index = keep_paths(pass_, whole.content_index, whole.previous, None, [int(last)])
    assert isinstance(kept, KeptPaths)
    q, k, v = inputs(whole.rows, 4, 2, 64, torch.float32)
    expected = TritonTreeAttention.of(whole)(q, k, v, scale=0.125)
    after = attrs.evolve(
        pass_,
        job=np.where((np.arange(pass_.rows) >= cut_row) & (pass_.job == 0), 0, -1).astype(np.int32),
        parent=np.where(pass_.parent == last, -1, pass_.parent).astype(np.int32),
        segments=np.array([[cut_row, cut_row, stop]], np.int32),
        base=np.array([0], np.int32),
    )
    layout = TreeLayout.build(after, kept, torch.device("cpu"))
    found = TritonTreeAttention.of(layout)(q, k, v, scale=0.125, past=(k[index], v[index]))
    assert torch.equal(found[cut_row:stop], expected[cut_row:stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_writes_the_format_that_the_linear_behind_wants(dtype: torch.dtype) -> None:
    layout = make_layout(4, (70, 0, 5))
    q, k, v = inputs(layout.rows, 4, 2, 32, dtype)
    attention = TritonTreeAttention.of(layout)
    plain = attention(q, k, v, scale=0.2)
    wanted = InputFormat(torch.float16, 2.0**-17)  # small enough for some to be clamped; the interpreter misrounds fp8
    found = attention(q, k, v, scale=0.2, output=wanted)
    assert torch.equal(found, wanted.write(plain))
    assert (found == torch.finfo(torch.float16).max).any()


def test_padding_gets_zeros() -> None:
    layout = make_layout(5, (3,))
    q, k, v = inputs(layout.rows, 4, 2, 32, torch.float32)
    found = TritonTreeAttention.of(layout)(q, k, v, scale=0.2)
    padding = torch.from_numpy(layout.pass_.job < 0)
    assert padding.any()
    assert not found[padding].any()


SERVED = [
    (head_dim, dtype, room)
    for head_dim in (64, 80, 256, 400, 512)
    for dtype in (torch.bfloat16, torch.float32)
    for room in ROOMS
    if not (head_dim > 256 and dtype == torch.float32 and room == ROOMS[-1])  # refused, see below
]


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize(("head_dim", "dtype", "room"), SERVED)
def test_tiles_fit_the_device(group: int, head_dim: int, dtype: torch.dtype, room: int) -> None:
    shape = tile_shape(group, head_dim, dtype, room)
    assert shape.shared_bytes(triton.next_power_of_2(head_dim), dtype) <= room
    assert shape.fold & (shape.fold - 1) == 0
    assert group % shape.fold == 0
    assert CONTENT_TILE % shape.rows == 0
    assert STEP_KEYS % shape.keys == 0


def test_a_width_that_fits_no_tile_is_refused() -> None:
    with pytest.raises(SetupError, match=r"heads of width 512 in torch.float32 need more than this GPU's 101376 bytes"):
        tile_shape(16, 512, torch.float32, 101_376)


@pytest.mark.parametrize("room", [30_000, 20_000, 12_000])
def test_smaller_tiles_give_the_same(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(8, (1, 70, 0))
    q, k, v = inputs(layout.rows, 4, 2, 64, torch.bfloat16)
    expected = TiledTreeAttention(layout)(q.float(), k.float(), v.float(), scale=0.125, window=40)
    monkeypatch.setattr(tree_attention, "shared_memory", lambda device: room)
    found = TritonTreeAttention.of(layout)(q, k, v, scale=0.125, window=40)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


def test_room_for_more_tiles_changes_nothing() -> None:
    layout = make_layout(6, (70, 0, 5))
    q, k, v = inputs(layout.rows, 4, 2, 32, torch.float32)
    arrays = with_room(tile_arrays(layout))
    assert {name: array.shape for name, array in arrays.items()} != {n: a.shape for n, a in tile_arrays(layout).items()}
    roomy = TritonTreeAttention(TileTables(**to_device(arrays, layout.device), in_place=True))
    assert torch.equal(roomy(q, k, v, scale=0.2), TritonTreeAttention.of(layout)(q, k, v, scale=0.2))


def test_a_row_meets_one_stretch_of_its_path_in_a_step() -> None:
    """And all of its ancestors after the cut in order, whatever siblings it has."""
    layout = make_layout(7, (70, 0, 5, 130))
    arrays = tile_arrays(layout)
    tiles, pass_ = arrays["tiles"], layout.pass_
    for start, rows, _, content, _, first, steps in tiles.T:
        for row in range(start, start + rows):
            if pass_.job[row] < 0 or pass_.depth[row] < pass_.cut[pass_.job[row]]:
                assert arrays["row_path"][row] == UNUSED
                continue
            seen = []
            for step in range(first, first + steps):
                slots = np.flatnonzero(arrays["step_paths"][step] == arrays["row_path"][row])
                assert len(slots) in (0, PATH_TILE)
                depths = arrays["stretch"][step] * PATH_TILE + slots % PATH_TILE
                seen += [
                    key
                    for key, depth in zip(arrays["step_keys"][step][slots], depths, strict=True)
                    if depth <= pass_.depth[row] - content
                ]
            ancestors, at = [], row
            while pass_.depth[row] - len(ancestors) >= content:
                ancestors.append(at)
                at = pass_.parent[at]
            assert seen == ancestors[::-1]
