"""How large the tiles of tree attention are on a device: what was quickest on an H200, or the next that fits."""

from __future__ import annotations

from functools import cache

import attrs
import torch
import triton

from spinf_core.errors import SetupError
from spinf_core.stack import CONTENT_TILE


@attrs.frozen
class TileShape:
    """Rows of a tile that a program takes, query heads that it folds into its lanes, keys per block, warps, stages of the key
    pipeline, and programs that share the columns of the values, each with scores of its own."""

    rows: int
    fold: int
    keys: int
    warps: int
    stages: int
    shares: int = 1

    @property
    def path_stages(self) -> int:
        """Stages of the pipeline on the rows' own paths: three read where the keys lie a block ahead of the keys, which holds a
        block more than one does; a shape of one stage has no room for that."""
        return 3 if self.stages > 1 else 1

    def shared_bytes(self, width: int, dtype: torch.dtype) -> int:
        """About what a program holds of shared memory: queries, and keys and values of each stage.

        float32 operands are split in two for the matrix units, which takes half as much again.
        """
        of_a_stage = self.keys * (width + width // self.shares)
        held = (self.rows * self.fold * width + self.stages * of_a_stage) * dtype.itemsize
        return held * 3 // 2 + 4096 if dtype == torch.float32 else held + 2048


def tile_shape(group: int, head_dim: int, dtype: torch.dtype, room: int) -> TileShape:
    """Of programs where `group` query heads share a key head: as measured on an H200, or the next that fits.

    Args:
        group: query heads of a key head.
        head_dim: their width.
        dtype: of queries, keys and values.
        room: bytes of shared memory that a program may have.

    Raises:
        SetupError: nothing fits.
    """
    wide = head_dim > 256
    fold = 1
    while group % (2 * fold) == 0 and CONTENT_TILE * fold * 2 <= 128:
        fold *= 2
    width: int = triton.next_power_of_2(head_dim)
    largest = TileShape(CONTENT_TILE, fold, 64, 8, 2)
    if wide and fold == 2:  # two shares work out the scores twice, but each warp has rows of its own
        largest = TileShape(CONTENT_TILE, fold, 32, 8, 2, shares=2)
    for shape in (
        largest,
        TileShape(CONTENT_TILE, 1, 32, 8, 2),
        TileShape(CONTENT_TILE, 1, 32, 8, 1),
        TileShape(32, 1, 32, 4, 1),
        TileShape(32, 1, 16, 4, 1),
        TileShape(16, 1, 16, 4, 1),
    ):
        if shape.shared_bytes(width, dtype) <= room:
            return shape
    raise SetupError(f"attention heads of width {head_dim} in {dtype} need more than this GPU's {room} bytes of shared memory")


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have on a device; an H200's in the interpreter."""
    if device.type != "cuda":
        return 232_448
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])
