"""Whether the large kernels compile and fit on cards that are not here: python tests/gpu/compiles.py [CARD [NAME]]

Needs no GPU, only Triton. Prints a table of the shared memory that each takes, and exits 1 if one takes more than the card has.
CARD and NAME choose those whose names begin so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spinf_core.nn.kernels import delta, rows, tree_delta
from spinf_core.nn.kernels.shapes import tile_shape
from spinf_core.nn.kernels.tables import STEP_KEYS
from spinf_core.nn.kernels.tree_attention import _attend
from spinf_core.nn.layout import PATH_TILE
from spinf_core.stack import CONTENT_TILE

CARDS = {"A100": (80, 166_912), "L40S": (89, 101_376), "H200": (90, 232_448)}
HEADS = {  # query heads, key heads, width, window
    "SmolLM2": (9, 3, 64, 0),
    "Gemma 4 12B, sliding": (16, 8, 256, 1024),
    "Gemma 4 12B, full": (16, 1, 512, 0),
    "Qwen3.5 27B": (24, 4, 256, 0),
}
FP8 = {"SCALED": 2, "LARGEST": 448.0}
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
Compiled = Callable[[], int]
"""Compiles a kernel and says how many bytes of shared memory it takes."""


def shared_bytes(kernel: Any, capability: int, types: dict[str, str], constants: dict[str, Any], **options: int) -> int:
    differing = {parameter.name for parameter in kernel.params if parameter.is_constexpr} ^ constants.keys()
    assert not differing, f"{kernel.__name__} and what it is given here differ in the constants {sorted(differing)}"
    signature = {name: "constexpr" if name in constants else types.get(name, "*i32") for name in kernel.arg_names}
    # Tensors begin at multiples of 16 bytes, without which nothing is copied ahead and less is held.
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return int(compiled.metadata.shared)


def attention(capability: int, room: int, model: str, dtype: torch.dtype, *, images: bool) -> int:
    heads, kv_heads, width, window = HEADS[model]
    shape = tile_shape(heads // kv_heads, width, dtype, room)
    name = NAMES[dtype]
    types = dict.fromkeys(("q", "k", "v", "out"), f"*{name}")
    columns = {"content_k": width, "content_v": width // shape.shares}
    types |= {tiled: f"tensordesc<{name}[{shape.keys}, {taken}]>" for tiled, taken in columns.items()}
    fp8 = FP8 if dtype == torch.bfloat16 and capability >= 89 else {}  # what the linear behind takes
    types |= {"out": "*fp8e4nv"} if fp8 else {}
    types |= dict.fromkeys(("narrow", "scale", "out_scale"), "fp32") | dict.fromkeys(("tiles", "rows_of_pass"), "i32")
    constants: dict[str, Any] = {
        "H": heads,
        "K": kv_heads,
        "D": width,
        "D_BLOCK": width,
        "WINDOW": window,
        "BLOCKS": images,
        "WHOLE": images,
    }
    constants |= {"T": shape.rows, "PARTS": CONTENT_TILE // shape.rows, "FOLD": shape.fold}
    constants |= {"SHARES": shape.shares, "BLOCK": shape.keys, "STEP_KEYS": STEP_KEYS, "STRETCH": PATH_TILE}
    constants |= {"PATH_STAGES": shape.path_stages, "IN_PLACE": True, "TILED": True}
    constants |= {"CAPPED": images, "UPCAST": False} | (fp8 or {"SCALED": 0, "LARGEST": 1.0})
    return shared_bytes(_attend, capability, types, constants, num_warps=shape.warps, num_stages=shape.stages)


def row_wise(capability: int) -> Iterator[tuple[str, Compiled]]:
    """With fp8 behind them, in the widths of Gemma 4 12B."""
    types = dict.fromkeys(("gate", "up", "x", "update", "after", "sum_out", "then"), "*bf16") | {"out": "*fp8e4nv"}
    types |= dict.fromkeys(("gate_stride", "up_stride"), "i32")
    types |= dict.fromkeys(("out_scale", "scalar", "after_eps", "then_eps"), "fp32")
    gated = FP8 | {"F": 15_360, "BLOCK": 1024, "GELU": True}
    yield "gated activation", partial(shared_bytes, rows._gated, capability, types, gated, num_warps=4)
    block, warps = rows._row_shape(3840)
    norms = FP8 | {"D": 3840, "BLOCK": block, "AFTER": True, "AFTER_WIDE": True, "SCALAR": True, "THEN_WIDE": True}
    yield "residual and norm", partial(shared_bytes, rows._add_norm, capability, types, norms, num_warps=warps)


def gated_delta(capability: int) -> Iterator[tuple[str, Compiled]]:
    floats = ("q", "k", "v", "g", "beta", "out", "past", "states", "inverse", "seen")
    types = dict.fromkeys(floats, "*fp32") | dict.fromkeys(("head0", "heads"), "i32")
    shape = {"K": 16, "V": 48, "DK": 128, "T": CONTENT_TILE}
    value = {"DV": 128}
    prepare = shape | {"PART": tree_delta.PREPARE_PART}
    yield (
        "prepare",
        partial(
            shared_bytes, delta.prepare_chunks, capability, types, prepare, num_warps=tree_delta.PREPARE_WARPS, num_stages=1
        ),
    )
    scan = shape | value | {"BLOCK": tree_delta.SCAN_COLUMNS, "PART": tree_delta.SCAN_PART}
    yield (
        "scan",
        partial(shared_bytes, delta.scan_contents, capability, types, scan, num_warps=tree_delta.SCAN_WARPS, num_stages=1),
    )
    walk = shape | value | {"BLOCK": tree_delta.WALK_COLUMNS}
    walk.pop("T")
    yield "walk", partial(shared_bytes, delta.walk_paths, capability, types, walk, num_warps=tree_delta.WALK_WARPS)


def kernels(capability: int, room: int) -> Iterator[tuple[str, Compiled]]:
    for model in HEADS:
        for dtype, name in NAMES.items():
            if (capability, model, dtype) == (89, "Gemma 4 12B, full", torch.float32):
                continue  # refused by name
            yield f"attention, {model}, {name}", partial(attention, capability, room, model, dtype, images=False)
        both = partial(attention, capability, room, model, torch.bfloat16, images=True)
        yield f"attention, {model}, bf16, images and a cap", both
    for name, found in gated_delta(capability):
        yield f"gated delta, {name}", found
    if capability >= 89:
        yield from row_wise(capability)


def main() -> int:
    failed = 0
    chosen, name = (*sys.argv[1:], "", "")[:2]
    for card, (capability, room) in CARDS.items():
        if not card.startswith(chosen):
            continue
        for what, compiled in kernels(capability, room):
            if not what.startswith(name):
                continue
            taken = compiled()
            verdict = "ok" if taken <= room else "FAILED"
            failed += verdict != "ok"
            print(f"{card:6}{what:58}{taken:9,} of {room:,} bytes  {verdict}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
